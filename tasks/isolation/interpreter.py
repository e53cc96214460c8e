"""The Python that processes behind walls run with: the run's own, or one of another virtual
environment, which reports its own paths and is left as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

OLDEST = (3, 10)  # that understands what runs in those processes
ANSWER_S = 60.0
SOURCES = str(Path(__file__).parents[2])  # before the directory of a user who has a `tasks.py`
QUESTION = (
    "import json, os, sys; print(json.dumps([list(sys.version_info[:3]), os.path.dirname("
    "os.__file__), getattr(sys, 'base_prefix', sys.prefix), sys.prefix, sys.path]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The paths of one Python interpreter."""

    executable: str  # its file, links followed
    library: str  # the directory of its standard library
    base_prefix: str  # above that library
    prefix: str  # its virtual environment; outside of one the same
    search_path: tuple[str, ...]  # where it imports from; the run's own ends in its directory


def own() -> Interpreter:
    """Returns the interpreter that this process runs with."""
    here = os.getcwd()
    return Interpreter(
        executable=os.path.realpath(sys.executable),
        library=os.path.dirname(os.__file__),
        base_prefix=sys.base_prefix,
        prefix=sys.prefix,
        search_path=(*(entry or here for entry in sys.path), SOURCES, here),
    )


@lru_cache(maxsize=16)
def at(path: str) -> Interpreter:
    """Returns the interpreter at an absolute path. Raises ValueError, with the cure."""
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise ValueError(
            f"an interpreter must be a file that can be executed, {path} is none; make a virtual"
            " environment (python -m venv DIRECTORY) and name its bin/python"
        )
    version, library, base_prefix, prefix, search_path = _asked(path)
    if tuple(version[:2]) < OLDEST:
        raise ValueError(
            f"an interpreter must be Python {OLDEST[0]}.{OLDEST[1]} or later, {path} is"
            f" {'.'.join(map(str, version))}; make its virtual environment with a later one"
        )
    if is_below_tmp(prefix) or is_below_tmp(library):
        raise ValueError(
            "an interpreter must lie outside of /tmp, in place of which a process has its own,"
            f" {path} does not; move its virtual environment"
        )
    return Interpreter(
        executable=os.path.realpath(path),
        library=library,
        base_prefix=base_prefix,
        prefix=prefix,
        search_path=tuple(entry for entry in search_path if entry),
    )


def below_tmp(interpreter: Interpreter) -> str:
    """Returns the executable or library that lies below /tmp; empty if none does."""
    paths = (interpreter.executable, interpreter.library)
    return next((path for path in paths if is_below_tmp(os.path.realpath(path))), "")


def is_below_tmp(path: str | Path) -> bool:
    """True if the path lies below /tmp: a process with a /tmp of its own cannot see it."""
    return Path("/tmp") in Path(path).parents


def _asked(path: str) -> tuple[list[int], str, str, str, list[str]]:
    try:
        answer = subprocess.run(
            [path, "-s", "-B", "-c", QUESTION],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            check=False,
        )
        version, library, base_prefix, prefix, search_path = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, ValueError):
            said = answer.stderr.strip().rpartition("\n")[2] or "it answers nothing"
        raise ValueError(
            f"an interpreter must be a Python that works, {path} does not ({said:.200}); name the"
            " bin/python of a virtual environment"
        ) from error
    return version, library, base_prefix, prefix, search_path
