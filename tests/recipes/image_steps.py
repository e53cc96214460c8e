"""The steps of a Dockerfile without Docker: in a root of their own, whose files are this machine's,
and what they write is seen there alone.

    instructions(text) ─▶ steps_of(…, target) ─▶ script_of ─▶ bash in an overlay of /
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# $1: a folder for what is written; $2: the script
IN_A_ROOT = """set -e
mkdir -p "$1"/written "$1"/work "$1"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/written,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/tmp"
exec chroot "$1/root" bash -e -o pipefail -c "$2"
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of a Dockerfile."""

    name: str  # RUN, COPY, …
    text: str  # what follows, on one line


def instructions(dockerfile: str) -> list[Instruction]:
    """All of a Dockerfile, without its comments."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = (line.partition(" ") for line in whole.splitlines() if line.strip())
    return [Instruction(name.upper(), text.strip()) for name, _, text in found]


def steps_of(found: Sequence[Instruction], target: str) -> list[Instruction]:
    """The instructions of a target and of those that it is made from. KeyError for an unknown."""
    stages: dict[str, list[Instruction]] = {}
    bases: dict[str, str] = {}
    name = ""
    for each in found:
        if each.name == "FROM":
            base, _, name = each.text.partition(" AS ")
            stages[name], bases[name] = [], base
        elif name:
            stages[name].append(each)
    below = steps_of(found, bases[target]) if bases[target] in stages else []
    return below + stages[target]


def script_of(steps: Sequence[Instruction], context: Path, arguments: Mapping[str, str]) -> str:
    """A shell script of these steps, but for packages of the system, which this machine has."""
    return "\n".join(_lines(steps, context, arguments))


def _lines(
    steps: Sequence[Instruction], context: Path, arguments: Mapping[str, str]
) -> Iterator[str]:
    for step in steps:
        if step.name == "ARG":
            name, _, value = step.text.partition("=")
            yield f"{name}={shlex.quote(arguments.get(name, value))}"
        elif step.name == "ENV":
            yield f"export {step.text}"
        elif step.name == "WORKDIR":
            yield f"mkdir -p {step.text}; cd {step.text}"
        elif step.name == "COPY":
            *sources, place = step.text.split()
            yield f"mkdir -p {place}"
            for source in map(context.joinpath, sources):
                content = "/." if source.is_dir() else ""
                yield f"cp -r {shlex.quote(str(source))}{content} {place}"
        elif step.name == "RUN" and not step.text.startswith("apt-get"):
            yield step.text
        elif step.name not in ("RUN", "CMD"):
            raise ValueError(f"no way is known to do {step.name} without Docker; add one")


def run_in_a_root(folder: Path, script: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a script in a root of its own, as root, with a network. folder: for what it writes."""
    words = ("unshare", "--mount", "bash", "-c", IN_A_ROOT, "bash", str(folder), script)
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
