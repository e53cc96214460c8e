"""The papers' experiments play what real runs play: no scheduling code is theirs alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("artifacts", "flows", "tasks")
SCHEDULING = ("tasks/scheduling/", "tasks/rounds/")  # who decides, and who carries it out
EXPERIMENTS = sorted(
    path
    for folder in ("research/paper", "tasks/simulation")
    for path in (ROOT / folder).rglob("*.py")
)
REAL = [ROOT / "flows" / "train.py", *sorted((ROOT / "flows" / "commands").glob("*.py"))]
DECIDES = ({"plan_round"}, {"start", "handle"})  # methods of a policy, of a scheduler


def imports_of(path: Path) -> set[Path]:
    """Our files that one imports, wherever in it, those for types alone, too."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {file for name in names if (file := file_of(name)) is not None}
    return found


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    if module.split(".")[0] not in ROOMS:
        return None
    path = ROOT / module.replace(".", "/")
    return next(
        (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
    )


def closure(paths: Iterable[Path]) -> set[Path]:
    """These files and all that they import."""
    seen: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imports_of(path)
    return seen


def scheduling(files: Iterable[Path]) -> set[str]:
    names = {str(path.relative_to(ROOT)) for path in files}
    return {name for name in names if name.startswith(SCHEDULING)}


def test_real_flows_reach_what_the_test_is_about() -> None:
    real = scheduling(closure(REAL))
    assert {"tasks/scheduling/short_round.py", "tasks/rounds/driver.py"} <= real


def test_experiments_import_no_scheduling_code_that_real_flows_do_not() -> None:
    assert EXPERIMENTS
    assert scheduling(closure(EXPERIMENTS)) <= scheduling(closure(REAL))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_experiment_decides_what_a_round_does(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            assert not any(deciding <= methods for deciding in DECIDES), node.name
