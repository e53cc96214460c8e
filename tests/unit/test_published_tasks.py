"""The papers' data sets by name, and the files of deployments/tasks, on rows of the published
shapes; published tests of programs."""

from __future__ import annotations

import io
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, Repository, serve_hub, use_hub
from huggingface_hub import constants
from pydantic import TypeAdapter

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.program_tests import CodeGold, StdioCase, program_tests
from artifacts.datasets.published_rows import Published, PublishedRows
from artifacts.datasets.registry import TaskConfig, load_dataset
from artifacts.datasets.rows import Dataset
from artifacts.records import CaseVerdict
from flows.config.run_config import RunConfig, pinned
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.programs.sandbox.case_runner import CaseRunner

TASKS = Path(__file__).parents[2] / "deployments" / "tasks"
OPENR1 = [
    {"problem": f"What is {n} + 1?", "solution": "...", "answer": str(n + 1), "source": "cn_k12"}
    for n in range(20)
] + [{"problem": "Prove it.", "solution": "...", "answer": None, "source": "olympiads"}]
OPENR1_CARD = b"""---
license: apache-2.0
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
- config_name: extended
  data_files:
  - split: train
    path: extended/train-*
---
"""

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
MODULE = '''
import pytest
from solution import add

def test_small():
    assert add(2, 3) == 5

def test_texts():
    """Words."""
    words = ["a", "b"]
    assert add(*words) == "ab"

def test_refuses():
    with pytest.raises(TypeError):
        add(1, "x")
'''
DEEPMATH = [
    {"question": f"What is ${n} + \\frac{{1}}{{2}}$?",
     "final_answer": f"\\dfrac{{{2 * n + 1}}}{{2}}", "difficulty": n / 2,
     "topic": "Algebra", "r1_solution_1": "..."}
    for n in range(20)
]  # fmt: skip
SYSTEM = {"role": "system", "content": "Please reason step by step."}
ROLLPACKER = [
    {
        "id": str(n), "domain": ("math_rule", "llm_judge")[n % 2], "reference_time": "",
        "source": "deepmath_103k", "difficulty": "5.0", "prompt": f"{n} + 1?",
        "messages": json.dumps([SYSTEM, {"role": "user", "content": f"{n} + 1?"}]),
        "ground_truth": str(n + 1), "case_type": "", "test_case_function": "", "test_cases": "",
        "tag": "deepmath_103k",
    }
    for n in range(20)
]  # fmt: skip
DECLARED = [{"function_name": "add", "function_declaration": "def add(a, b):"}]
KODCODE = [
    {"style": "instruct", "question": f"Add two values ({n}).", "solution": ADD, "test": MODULE,
     "test_info": DECLARED}
    for n in range(3)
] + [
    {"style": "complete", "question": "Add, with a fixture.", "solution": ADD,
     "test": "def test_it(fixture):\n    assert add(1, fixture)", "test_info": DECLARED},
    {"style": "online_judge", "question": "Read two numbers, print their sum.", "solution": "",
     "test": json.dumps({"stdin": ["2 3\n", "1 1\n"], "stdout": ["5\n", "2\n"]}), "test_info": []},
]  # fmt: skip
SUBJECTS = [
    {"query": [SYSTEM, {"role": "user", "content": f"Which law has number {n}?"}],
     "label": f"law {n}", "task": "exam"}
    for n in range(8)
]  # fmt: skip


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


PUBLISHED = {
    "zwhe99/DeepMath-103K": {"data/train-00000-of-00010.parquet": parquet(DEEPMATH)},
    "KodCode/KodCode-V1": {"data/train-00000-of-00002.parquet": parquet(KODCODE)},
    "virtuoussy/Multi-subject-RLVR": {
        "train.parquet": parquet(SUBJECTS),
        "test.parquet": parquet(SUBJECTS[:2]),
    },
    "open-r1/OpenR1-Math-220k": {
        "README.md": OPENR1_CARD,
        "data/train-00000-of-00010.parquet": parquet(OPENR1[:1]),
        "extended/train-00000-of-00010.parquet": parquet(OPENR1),
    },
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "hub")
        for name, files in PUBLISHED.items():
            hub.repositories[f"datasets/{name}"] = Repository(files)
        yield hub


@pytest.fixture(scope="module")
def runner() -> Iterator[CaseRunner]:
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    yield runner
    runner.close()


def dataset_of(kind: str, **changes: object) -> Dataset:
    task = TypeAdapter[TaskConfig](TaskConfig).validate_python({"kind": kind} | changes)
    return load_dataset(task, 0)


def verdicts(runner: CaseRunner, gold: CodeGold, program: str) -> list[CaseVerdict]:
    return [run.verdict for run in runner.run(program, gold, (20.0,) * len(gold.cases))]


def test_deepmath(hub: Hub) -> None:
    dataset = dataset_of("deepmath", filter=["difficulty >= 5"])
    assert len(dataset.rows) + len(dataset.heldout) == 10, "half of the rows are hard enough"
    assert set(dataset.domains) == {"math"}
    row = dataset.rows[0]
    assert row.messages[0].content.endswith("within \\boxed{}.")
    assert row.text.startswith("What is $")
    assert row.gold.startswith("\\dfrac{")


def test_openr1_without_its_rows_that_have_no_answer(hub: Hub) -> None:
    dataset = dataset_of("openr1", heldout_fraction=0.1)
    assert (len(dataset.rows), len(dataset.heldout)) == (18, 2)
    assert dataset.left_out == {"unusable": 1}
    assert [turn.role for turn in dataset.rows[0].messages] == ["user"]
    assert dataset.rows[0].text.endswith("? Please reason step by step, and put your final answer"
                                         " within \\boxed{}.")  # fmt: skip


@pytest.mark.parametrize("name", ["math", "judge"])
def test_the_rows_of_the_artifact(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROLLPACKER)))
    settings = json.loads((TASKS / f"rollpacker-artifact-{name}.json").read_text())
    config = RunConfig.model_validate({"preset": "one-gpu", "task": settings["task"]})
    assert isinstance(config.task, FilesConfig)
    assert Path(config.task.path).name.endswith("_e2e.jsonl")
    task = config.task.model_copy(update={"path": str(path)})
    with pytest.raises(ValueError, match=r"rows.jsonl must have the SHA-256 \w{64}, got \w{64}:"):
        load_dataset(task, 0)
    dataset = load_dataset(task.model_copy(update={"first_rows_sha256": ""}), 0)
    assert set(dataset.domains) == {"math_rule", "llm_judge"} >= set(settings["rewards"])
    assert [turn.role for turn in dataset.rows[0].messages] == ["system", "user"]


def test_the_first_rows_count_as_they_are_asked(tmp_path: Path) -> None:
    """Rows behind the first 64 do not count, nor does what is not asked of a row."""
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1, "note": n} for n in range(80)]

    def load(wanted: str) -> Dataset:
        path.write_text("\n".join(map(json.dumps, rows)))
        return dataset_of("files", path=str(path), first_rows_sha256=wanted)

    with pytest.raises(ValueError, match=r"got \w{64}:") as refused:
        load("0" * 64)
    found = re.findall(r"got (\w{64})", str(refused.value))[0]
    rows[0]["note"] = "another"
    rows[64]["answer"] = 0
    assert len(load(found).rows) == 76
    rows[63]["answer"] = 0
    with pytest.raises(ValueError, match=found):
        load(found)


@pytest.mark.parametrize("kind", typing.get_args(Published))
def test_a_data_set_that_cannot_be_fetched_says_what_to_put_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[PublishedRows]
) -> None:
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = kind()  # type: ignore[call-arg]  # the mapping has a repository
    owner, name = config.repository.split("/")
    cure = f"run `hf download --repo-type dataset {owner}/{name}` on another machine and copy"
    with pytest.raises(ValueError, match=re.escape(cure)) as refused:
        config.load(0)
    assert f"the folder datasets--{owner}--{name} of its cache there" in str(refused.value)
    assert f"in the cache {tmp_path}" in str(refused.value)


def test_the_data_sets_of_a_run_are_kept_at_their_commit(hub: Hub) -> None:
    config = pinned(RunConfig.model_validate({"preset": "one-gpu", "model": {"kind": "smollm2"},
                                              "task": {"kind": "deepmath"}}))  # fmt: skip
    assert isinstance(config.task, PublishedRows)
    assert config.task.revision == hub.repositories["datasets/zwhe99/DeepMath-103K"].commit
    kept = config.model_dump(mode="json")
    assert RunConfig.model_validate(kept) == config


@pytest.mark.parametrize("kind", typing.get_args(Published))
def test_the_page_has_the_licence_and_the_repository(kind: type[PublishedRows]) -> None:
    page = (TASKS.parents[1] / "docs" / "data.md").read_text()
    fields = kind.model_fields
    licence = str(fields["kind"].description).rpartition("; ")[2].rstrip(".")
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{fields['kind'].default}`")]
    assert f"{fields['repository'].default}" in row
    assert licence in row


def test_kodcode_with_assertions(hub: Hub, runner: CaseRunner) -> None:
    dataset = dataset_of("kodcode", heldout_fraction=0)
    assert len(dataset.rows) == 3, "the test with a fixture cannot run"
    assert "`def add(a, b):`" in dataset.rows[0].text
    gold = CodeGold.model_validate_json(dataset.rows[0].gold)
    assert (gold.function, gold.solution, len(gold.cases)) == ("add", ADD, 3)
    assert verdicts(runner, gold, gold.solution) == [CaseVerdict.PASS] * 3
    assert CaseVerdict.PASS not in verdicts(runner, gold, WRONG)[:2]


def test_kodcode_with_a_standard_input(hub: Hub, runner: CaseRunner) -> None:
    (row,) = dataset_of("kodcode_programs", heldout_fraction=0).rows
    gold = CodeGold.model_validate_json(row.gold)
    right, wrong = ("print(sum(map(int, input().split())))", "print(5)")
    assert verdicts(runner, gold, right) == [CaseVerdict.PASS] * 2
    assert verdicts(runner, gold, wrong) == [CaseVerdict.PASS, CaseVerdict.WRONG]


def test_multi_subject_questions(hub: Hub) -> None:
    dataset = dataset_of("multi_subject")
    assert len(dataset.rows) == 6
    assert {row.gold for row in dataset.heldout} == {"law 0", "law 1"}
    assert set(dataset.domains) == {"subjects"}


@pytest.mark.parametrize(
    "tests",
    [
        ["assert add(2, 3) == 5", "assert add([1], [2]) == [1, 2]"],
        ["import math; assert math.isclose(add(2, 3), 5)", "assert math.floor(add(1, 1.5)) == 2"],
        ["assert list(map(lambda n: add(n, 1), [1])) == [add(x, 1) for x in [1]] == [2]"],
        json.dumps(["assert add(2, 3) == 5"]),
        {"function": "add", "cases": [{"kind": "call", "arguments": [2, 3], "expected": 5}]},
        "from math import floor\nfrom solution import *\nassert floor(add(2.5, 3)) == 5",
        "from solution import add\nLIMIT = 5\ndef test_it():\n    assert add(2, 3) <= LIMIT",
        MODULE,
        MODULE + "\nif __name__ == '__main__':\n    pytest.main()",
    ],
)
def test_published_forms_of_tests_tell_right_from_wrong(runner: CaseRunner, tests: Any) -> None:
    gold = program_tests(tests)
    assert set(verdicts(runner, gold, ADD)) == {CaseVerdict.PASS}
    assert verdicts(runner, gold, "def add(a, b):\n    return 99\n")[0] is CaseVerdict.WRONG


def test_whole_programs_may_have_lines_for_texts() -> None:
    tests = {"fn_name": None, "inputs": [["1", "2"], "3"], "outputs": ["a", ["b", "c"]]}
    gold = program_tests(tests)
    assert gold.cases == (
        StdioCase(stdin="1\n2", stdout="a"),
        StdioCase(stdin="3", stdout="b\nc"),
    )


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("", "must be an object, a list or a module's text"),
        (None, "must be an object"),
        ("def f(:", "must be Python"),
        ("x = 1", "must have a function test_"),
        ([], "must hold assertions"),
        (["assert f(1) == g(1)"], "about one function, these are about f, g"),
        (["assert len([]) == 0"], "these are about none"),
        ("def test_it(tmp_path):\n    f()", "neither parameters nor decorators, it has 'tmp_path'"),
        ("@pytest.mark.slow\ndef test_it():\n    f()", "neither parameters nor decorators"),
        ({"stdin": ["1"], "stdout": []}, "as many inputs as outputs, got 1 and 0"),
        ({"stdout": ["1"]}, "one of stdin, inputs, input"),
        ({"cases": []}, "no CodeGold"),
        ({"fn_name": "f", "inputs": [[1, 2]], "outputs": [3]}, "these are of fn_name 'f'"),
        (["assert math.isclose(f(1), 2.5)"], "must import what they use, got math"),
        ("from solution import f as g\ndef test_it():\n    g()", "must call f by its name, got g"),
        (
            "def test_it():\n    f()\nclass TestIt:\n    def test_it(self):\n        f()",
            "must be plain functions, got class TestIt:",
        ),
        ("def test_it():\n    f()\nasync def test_all():\n    f()", "got async def test_all"),
    ],
)
def test_tests_that_cannot_run_are_refused(tests: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        program_tests(tests)
