"""What the documents mention is there: files, tests, links, modules, commands, presets, fields."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from flows.commands.command_line import assemble
from flows.commands.rollflow import COMMANDS
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    + [
        page
        for folder in ("docs", "deployments", "research/results")
        for page in (ROOT / folder).glob("*.md")
    ]
)
ROOMS = "artifacts|deployments|docs|examples|flows|requirements|research|tasks|tests"
PLACEHOLDER = "NAME"
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    """Without diffs, which speak of what would be."""
    return re.sub(r"```diff\n.*?```", "", page.read_text(), flags=re.DOTALL)


def found(page: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, text_of(page), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w -]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def is_there(path: str) -> bool:
    """Whether it is a file or a folder of ours, a module's ending left out or not."""
    return PLACEHOLDER in path or (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


@of_each_page
def test_every_path_is_there(page: Path) -> None:
    paths = found(page, rf"`((?:{ROOMS})/[\w./-]*)(?:::\w+)?`")
    assert not [path for path in paths if not is_there(path)]


@of_each_page
def test_every_test_is_there(page: Path) -> None:
    named = [word.split("::") for word in found(page, r"`(tests/[\w./-]+::\w+)`")]
    assert not [
        (file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()
    ]


@of_each_page
def test_every_name_is_in_the_file_that_is_said_to_have_it(page: Path) -> None:
    named = re.findall(r"`(?:\w+\.)*(\w+)` in `([\w/.]+\.py)`", text_of(page))
    assert not [
        (name, file)
        for name, file in named
        if not re.search(rf"\b(def|class) {name}\b", (ROOT / file).read_text())
    ]


def broken_links(page: Path) -> Iterator[str]:
    for link in found(page, r"\]\(([^)\s]+)\)"):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@of_each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


@of_each_page
def test_every_command_is_there(page: Path) -> None:
    modules = found(page, rf"python -m ((?:{ROOMS})\.[\w.]+)")
    assert not [name for name in modules if not is_there(name.replace(".", "/"))]
    commands = found(page, r"(?:`|^|\(|bin/)rollflow ([a-z]\w*)")
    assert commands <= {command.name for command in COMMANDS}
    targets = found(page, r"(?:`|^)make ([a-z][\w-]*)")
    assert targets <= set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


def printed_commands(page: Path) -> Iterator[list[str]]:
    """The words of every whole `rollflow ...` line of a block, without what is said of it."""
    blocks = re.findall(r"```\n(.*?)```", text_of(page), re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", "").splitlines():
        command = re.split(r"\s+#\s", line)[0].rstrip(" &")
        if re.match(r"rollflow [a-z]", command) and not re.search(r"--preset [A-Z]|─", command):
            yield shlex.split(command)[1:]


@of_each_page
def test_every_printed_command_is_accepted(page: Path) -> None:
    modules = {command.name: command.module for command in COMMANDS}
    for name, *words in printed_commands(page):
        options = import_module(modules[name]).parser().parse_args(words)
        if name in ("demo", "train", "explain") and not options.settings:
            RunConfig.model_validate(assemble(options.preset, "", options.set))


@pytest.mark.parametrize(
    "profile", sorted((ROOT / "deployments/profiles").iterdir()), ids=lambda file: file.name
)
def test_every_profile_is_a_file_of_settings(profile: Path) -> None:
    values = assemble("", "", ["model.path=model", "task.path=rows.jsonl"], str(profile))
    assert RunConfig.model_validate(values).cluster.scheduler_address


@of_each_page
def test_every_preset_and_every_field_is_there(page: Path) -> None:
    presets = found(page, r"(?:--preset |PRESET=)([a-z][\w-]*)")
    assert presets <= set(PRESETS)
    lines = text_of(page).splitlines()
    # the settings of `rollflow check` are those of a part
    of_runs = "\n".join(line for line in lines if "rollflow check" not in line)
    fields = set(re.findall(r"--set '?([a-z_]+)[.=]", of_runs))
    assert fields <= set(RunConfig.model_fields)
