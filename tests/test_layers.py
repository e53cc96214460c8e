"""The structure holds: imports point one way and in no circle, only flows and task files know
Prefect, only a policy knows which policy it is, every config field has a reader.

A test is a rule: when it fails it names every file that breaks it, and with what."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.registry import POLICIES

ROOT = Path(__file__).parents[1]
SOURCES = sorted(  # of the product
    path for room in ("flows", "tasks", "artifacts") for path in (ROOT / room).rglob("*.py")
)
ALL_SOURCES = SOURCES + sorted((ROOT / "research").rglob("*.py"))
KNOWN = frozenset(ALL_SOURCES)
BELOW = {
    "research": {"research", "flows", "tasks", "artifacts"},
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
    "tasks/engines",
    "tasks/isolation",
    "tasks/rewards",
    "tasks/environments",
    "tasks/learner",
    "tasks/rounds",
    "tasks/elastic",
    "tasks/simulation",
    "tasks/tiny_models",
    "tasks/run",
    "tasks/metrics",
    "tasks",
    "flows/config",
    "flows",
    "flows/commands",
    "research/gpu",
    "research/kills",
    "research/ablations",
    "research/spot",
    "research/paper",
    "research/benchmarks",
)
# rooms within one: the first of a pair knows nothing of the second
MAX_ROOMS, MAX_ARROWS = 24, 130  # of the product
MIN_LINES, MAX_LINES = 80, 400  # of a file
MAX_LONELY = 15  # files of the product below that with a single user
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
CONFIGS = {
    "BaseModel", "FrozenConfig", "ReplicaConfig", "EnvironmentSettings", "GameConfig",
    "QuestionConfig", "PolicyLoss", "OverlongRule", "CustomPart",
}  # fmt: skip


def name_of(path: Path) -> str:
    """The path of a file as a person would give it."""
    return str(path.relative_to(ROOT))


def broken(
    rule: Callable[[Path], Sequence[str]], paths: Sequence[Path] = SOURCES
) -> Mapping[str, Sequence[str]]:
    """What breaks a rule, by file."""
    return {name_of(path): found for path in paths if (found := rule(path))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that a file is made of."""
    return tuple(ast.walk(tree_of(path)))


def imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_imports_point_down() -> None:
    def upwards(path: Path) -> list[str]:
        ours = {name.split(".")[0] for name in imports(path)} & set(BELOW)
        return sorted(ours - BELOW[path.relative_to(ROOT).parts[0]])

    assert not broken(upwards, ALL_SOURCES)


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


def test_no_room_imports_one_above_it() -> None:
    def height(path: Path) -> int:
        return ROOMS.index(room_of(path))

    def above(path: Path) -> list[str]:
        others = imported_files(path)
        return sorted(name_of(other) for other in others if height(other) > height(path))

    assert not broken(above, ALL_SOURCES)


def test_rooms_of_the_product_know_few_others() -> None:
    """An arrow from one room to another is a thing to learn; 130 is a product of 21 rooms."""
    arrows = {
        (room_of(path), room_of(other))
        for path in SOURCES
        for other in imported_files(path)
        if room_of(path) != room_of(other)
    }
    assert len({room_of(path) for path in SOURCES}) <= MAX_ROOMS
    assert len(arrows) <= MAX_ARROWS


def test_files_have_a_readable_size() -> None:
    """Above the limit a file has two reasons to change. Few files are so small that they could
    join their only user: programs of their own, and what is light where the user is heavy."""
    lengths = {path: len(path.read_text().splitlines()) for path in ALL_SOURCES}
    assert {name_of(path): size for path, size in lengths.items() if size > MAX_LINES} == {}
    users: dict[Path, int] = dict.fromkeys(SOURCES, 0)
    for path in SOURCES:
        for other in imported_files(path) & users.keys():
            users[other] += 1
    lonely = [
        name_of(path)
        for path, number in users.items()
        if number == 1 and lengths[path] < MIN_LINES and path.stem != "__init__"
    ]
    assert len(lonely) <= MAX_LONELY, lonely


@pytest.mark.parametrize(("below", "above"), INNER_ROOMS)
def test_an_inner_room_knows_nothing_of_the_one_above_it(below: str, above: str) -> None:
    sources = [path for path in SOURCES if ROOT / below in path.parents]
    assert sources

    def known(path: Path) -> list[str]:
        names = map(name_of, imported_files(path))
        return sorted(name for name in names if name.startswith(f"{above}/"))

    assert not broken(known, sources)


def test_files_import_each_other_in_no_circle() -> None:
    graph = {path: imported_files(path) for path in ALL_SOURCES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def compared_words(path: Path) -> Iterator[str]:
    """Texts that a file compares something with."""
    for node in nodes_of(path):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        for part in chain.from_iterable(map(ast.walk, asked)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def tables(path: Path) -> Iterator[set[object]]:
    """The constant keys of every mapping that a file spells out."""
    for node in nodes_of(path):
        if isinstance(node, ast.Dict):
            yield {key.value for key in node.keys if isinstance(key, ast.Constant)}


def imported_names(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_nobody_asks_which_policy_runs() -> None:
    def asked(path: Path) -> list[str]:
        known = {policy.__name__ for policy in POLICIES} & set(imported_names(path))
        told = [POLICY_WORDS & keys for keys in tables(path)]
        by_table = chain.from_iterable(words for words in told if len(words) > 1)
        return sorted({*known, *(POLICY_WORDS & set(compared_words(path))), *by_table})

    outside = [path for path in SOURCES if POLICIES_ROOM not in path.parents]
    assert not broken(asked, outside)


def test_only_flows_and_task_files_import_prefect() -> None:
    def known(path: Path) -> list[str]:
        parts = path.relative_to(ROOT).parts
        may = parts[0] == "flows" or (parts[0] == "tasks" and len(parts) == 2)
        return [] if may else [name for name in imports(path) if name.startswith("prefect")]

    assert not broken(known)


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


def test_one_thread_at_a_time_imports_transformers() -> None:
    def unguarded(path: Path) -> list[str]:
        if "transformers" not in path.read_text():
            return []
        names = unguarded_imports(tree_of(path))
        return [name for name in names if name.split(".")[0] == "transformers"]

    guard = ROOT / "artifacts" / "models" / "importing.py"
    assert not broken(unguarded, [path for path in SOURCES if path != guard])


def test_names_say_something_and_shadow_nothing() -> None:
    assert not [name_of(path) for path in ALL_SOURCES if path.stem in FORBIDDEN_STEMS]


def test_no_public_class_name_stands_twice() -> None:
    files: dict[str, list[str]] = {}
    for path in ALL_SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


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
                        yield name_of(path), node.name, item.target.id


def test_every_config_field_is_read() -> None:
    read = re.compile(r"\.(\w+)\b(?!\s*=[^=])")
    names = {name for path in SOURCES for name in read.findall(path.read_text())}
    fields = list(config_fields())
    assert len(fields) > 100, "configurations were not found"
    assert not [field for field in fields if field[-1] not in names]
