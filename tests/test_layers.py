"""The structure holds: imports point one way and in no circle, only flows and task files know
Prefect, only a policy knows which policy it is, every config field has a reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.registry import POLICIES

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path for room in ("flows", "tasks", "artifacts") for path in (ROOT / room).rglob("*.py")
)
KNOWN = frozenset(SOURCES)
BELOW = {
    "flows": {"flows", "tasks", "artifacts"},
    "tasks": {"tasks", "artifacts"},
    "artifacts": {"artifacts"},
}
# rooms from the ground up, a top folder's own files under its name: none imports one above it
ROOMS = (
    "artifacts",
    "artifacts/datasets",
    "artifacts/models",
    "artifacts/reports",
    "tasks/scheduling",
    "tasks/cluster",
    "tasks/weights",
    "tasks/engines",
    "tasks/sandbox",
    "tasks/rewards",
    "tasks/environments",
    "tasks/learner",
    "tasks/rounds",
    "tasks/guests",
    "tasks/simulation",
    "tasks",
    "flows/config",
    "flows",
    "flows/commands",
    "flows/experiments",
)
# rooms within one: the first of a pair knows nothing of the second
INNER_ROOMS = (("tasks/environments/processes", "tasks/environments/hosts"),)
POLICIES_ROOM = ROOT / "tasks" / "scheduling" / "policies"
BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=2)
# what the policies call themselves and their rounds
POLICY_WORDS = {policy().kind for policy in POLICIES} | {
    "drain",
    *(shape.kind for policy in POLICIES for shape in policy().algebra(BATCH).rounds),
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
# bases of configurations
CONFIGS = {"BaseModel", "ReplicaConfig", "EnvironmentSettings", "GameConfig", "StyledGameConfig"}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that a file is made of."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[0] for name in imports(path)} & set(BELOW)
    assert ours <= BELOW[room]


def room_of(path: Path) -> str:
    """The room of a file, as ROOMS has it."""
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[:2])


@cache
def imported_files(path: Path) -> set[Path]:
    """Our files that this one imports, for its types alone or not."""
    found: set[Path] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {file_of(name) or file_of(node.module) or path for name in names}
        elif isinstance(node, ast.Import):
            found |= {file_of(alias.name) or path for alias in node.names}
    return found - {path}


def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    return path if path in KNOWN else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_room_imports_one_above_it(path: Path) -> None:
    height = ROOMS.index(room_of(path))
    above = {
        str(other.relative_to(ROOT))
        for other in imported_files(path)
        if ROOMS.index(room_of(other)) > height
    }
    assert not above


@pytest.mark.parametrize(("below", "above"), INNER_ROOMS)
def test_an_inner_room_knows_nothing_of_the_one_above_it(below: str, above: str) -> None:
    sources = [path for path in SOURCES if ROOT / below in path.parents]
    assert sources
    for path in sources:
        known = {str(other.relative_to(ROOT)) for other in imported_files(path)}
        assert not {name for name in known if name.startswith(f"{above}/")}, path


def test_files_import_each_other_in_no_circle() -> None:
    graph = {path: imported_files(path) for path in SOURCES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def compared_words(tree: ast.AST) -> Iterator[str]:
    """Texts that a file compares something with."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        for part in chain.from_iterable(map(ast.walk, asked)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def tables(tree: ast.AST) -> Iterator[set[object]]:
    """The constant keys of every mapping that a file spells out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield {key.value for key in node.keys if isinstance(key, ast.Constant)}


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


OUTSIDE = [path for path in SOURCES if POLICIES_ROOM not in path.parents]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_asks_which_policy_runs(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not {policy.__name__ for policy in POLICIES} & set(imported_names(tree))
    assert not POLICY_WORDS & set(compared_words(tree))
    assert not [keys for keys in tables(tree) if len(POLICY_WORDS & keys) > 1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_flows_and_task_files_import_prefect(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    may = parts[0] == "flows" or (parts[0] == "tasks" and len(parts) == 2)
    assert may or not any(name.split(".")[0].startswith("prefect") for name in imports(path))


def unguarded_imports(node: ast.AST) -> Iterator[str]:
    """Modules that are imported outside of the block for transformers, those for types alone left
    out."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.With) and ast.unparse(node.items[0]) == "importing_transformers()":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
    for child in ast.iter_child_nodes(node):
        yield from unguarded_imports(child)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_thread_at_a_time_imports_transformers(path: Path) -> None:
    if path != ROOT / "artifacts" / "models" / "importing.py":
        names = unguarded_imports(ast.parse(path.read_text()))
        assert not [name for name in names if name.split(".")[0] == "transformers"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_something_and_shadow_nothing(path: Path) -> None:
    assert path.stem not in FORBIDDEN_STEMS


def config_fields() -> Iterator[tuple[str, str, str]]:
    """(file, class, field) of every pydantic configuration."""
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id in CONFIGS for base in node.bases
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
