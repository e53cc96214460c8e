"""The structure holds: imports point one way, only flows and task files know Prefect, every config
field has a reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path for room in ("flows", "tasks", "artifacts") for path in (ROOT / room).rglob("*.py")
)
BELOW = {
    "flows": {"flows", "tasks", "artifacts"},
    "tasks": {"tasks", "artifacts"},
    "artifacts": {"artifacts"},
}
ROOMS_BELOW: dict[str, set[str]] = {  # what a room of tasks/ may import; files beside them: all
    "scheduling": set(),
    "environments": set(),
    "cluster": {"scheduling"},
    "engines": {"scheduling", "cluster"},
    "learner": {"scheduling", "cluster", "engines"},
    "rewards": {"scheduling", "cluster", "engines"},
    "rounds": {"scheduling", "cluster", "engines"},
}
FORBIDDEN_STEMS = {
    "utils",
    "helpers",
    "common",
    "misc",
    "manager",
    "profile",
    "code",
    "math",
    "dask",
    "types",
    "queue",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[0] for name in imports(path)} & set(BELOW)
    assert ours <= BELOW[room]


ROOM_FILES = sorted(
    path for room in (ROOT / "tasks").iterdir() if room.is_dir() for path in room.rglob("*.py")
)


@pytest.mark.parametrize("path", ROOM_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_of_tasks_import_only_rooms_below_them(path: Path) -> None:
    room = path.relative_to(ROOT).parts[1]
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("tasks.")}
    assert ours - {room} <= ROOMS_BELOW[room]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_flows_and_task_files_import_prefect(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    may = parts[0] == "flows" or (parts[0] == "tasks" and len(parts) == 2)
    assert may or not any(name.split(".")[0].startswith("prefect") for name in imports(path))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_something_and_shadow_nothing(path: Path) -> None:
    assert path.stem not in FORBIDDEN_STEMS


def config_fields() -> Iterator[tuple[str, str, str]]:
    """(file, class, field) of every pydantic configuration."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "BaseModel" for base in node.bases
            ):
                for item in node.body:
                    if (
                        isinstance(item, ast.AnnAssign)
                        and isinstance(item.target, ast.Name)
                        and item.target.id != "kind"
                    ):
                        yield str(path.relative_to(ROOT)), node.name, item.target.id


@pytest.mark.parametrize(("file", "owner", "field"), list(config_fields()), ids=lambda value: value)
def test_every_config_field_is_read(file: str, owner: str, field: str) -> None:
    readers = re.compile(rf"\.{field}\b(?!\s*=[^=])")
    assert any(readers.search(path.read_text()) for path in SOURCES), (
        f"{owner}.{field} of {file} has no reader"
    )
