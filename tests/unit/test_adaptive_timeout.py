"""Time limits that follow the slowest correct execution, and the second looks that keep a lucky
fast one from starving slow ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.records import CaseResult, CaseVerdict
from tasks.rewards.programs.adaptive_timeout import (
    MAX_HOPELESS,
    AdaptiveTimeoutConfig,
    Anchor,
    MeasuredTimes,
    from_record,
    is_early_kill,
    is_ended_early,
    limit_s,
    merged,
    observed,
    second_looks,
    to_record,
)

CONFIG = AdaptiveTimeoutConfig()
seconds = st.floats(0, 100, allow_nan=False)
anchors = st.builds(
    Anchor, slowest_s=seconds, num_correct=st.integers(0, 5), num_hopeless=st.integers(0, 5)
)
states = st.dictionaries(st.sampled_from(["a/0", "a/1", "b/0"]), anchors)


def case(verdict: str, wall_s: float, limit: float = 30.0, key: str = "a/0") -> CaseResult:
    return CaseResult(key=key, verdict=CaseVerdict(verdict), wall_s=wall_s, limit_s=limit)


@pytest.mark.parametrize(
    ("slowest_s", "limit"),
    [(0.001, 2.0), (1.0, 2.0), (1.34, 2.01), (10.0, 15.0), (20.0, 30.0), (29.0, 30.0)],
)
def test_limit_is_a_multiple_of_the_slowest_correct_execution_between_floor_and_ceiling(
    slowest_s: float, limit: float
) -> None:
    assert limit_s(CONFIG, Anchor(slowest_s=slowest_s, num_correct=1)) == pytest.approx(limit)


def test_a_case_without_a_correct_execution_has_the_ceiling() -> None:
    assert limit_s(CONFIG, Anchor(num_hopeless=9)) == 30.0


def test_equal_floor_and_ceiling_fix_the_limit() -> None:
    fixed = AdaptiveTimeoutConfig(floor_s=30.0)
    assert limit_s(fixed, Anchor(slowest_s=0.1, num_correct=5)) == 30.0


def test_only_responses_that_pass_everything_set_anchors() -> None:
    told = observed(
        CONFIG,
        [
            (case("pass", 3.0), case("pass", 0.5, key="a/1")),
            (case("pass", 9.0), case("wrong", 0.1, key="a/1")),
        ],
    )
    assert told == {
        "a/0": Anchor(slowest_s=3.0, num_correct=1),
        "a/1": Anchor(slowest_s=0.5, num_correct=1),
    }


def test_hopeless_are_executions_at_the_ceiling_and_not_early_kills() -> None:
    assert observed(CONFIG, [(case("timeout", 30.0),), (case("timeout", 2.0, limit=2.0),)]) == {
        "a/0": Anchor(num_hopeless=1)
    }
    assert is_early_kill(CONFIG, case("timeout", 2.0, limit=2.0))
    assert not is_early_kill(CONFIG, case("timeout", 30.0))
    assert not is_early_kill(CONFIG, case("wrong", 1.0, limit=2.0))


@given(states, states, states)
def test_a_state_is_the_sum_of_what_the_steps_recorded(
    first: dict[str, Anchor], second: dict[str, Anchor], third: dict[str, Anchor]
) -> None:
    assert merged(first, second) == merged(second, first)
    assert merged(merged(first, second), third) == merged(first, merged(second, third))
    assert merged(first, {}) == first
    assert from_record(json.loads(json.dumps(to_record(first)))) == first


@given(anchors, seconds)
def test_more_correct_executions_never_shorten_a_limit(anchor: Anchor, wall_s: float) -> None:
    correct = anchor + Anchor(slowest_s=1.0, num_correct=1)
    longer = correct + Anchor(slowest_s=wall_s, num_correct=1)
    assert CONFIG.floor_s <= limit_s(CONFIG, correct) <= limit_s(CONFIG, longer) <= CONFIG.ceiling_s


def test_second_looks_go_to_one_early_killed_program_of_each_case_with_hope() -> None:
    early, other, hopeless = (
        case("timeout", 2.0, limit=2.0, key=key) for key in ("a/0", "b/0", "c/0")
    )
    responses = [
        (case("wrong", 0.1),),
        (early,),
        (early,),
        (case("pass", 0.1), other),
        (hopeless,),
        (case("timeout", 30.0, key="d/0"),),
    ]
    anchors = {"c/0": Anchor(num_hopeless=MAX_HOPELESS)}
    assert second_looks(CONFIG, anchors, responses, 8) == [1, 3]
    assert second_looks(CONFIG, anchors, responses, 1) == [1]
    assert second_looks(CONFIG, anchors, responses, 0) == []


def test_a_program_that_failed_by_itself_is_no_early_kill_and_gets_no_second_look() -> None:
    early, wrong, unrun = (
        case("timeout", 2.0, limit=2.0),
        case("wrong", 0.1, key="b/0"),
        case("not_run", 0.0, key="c/0"),
    )
    assert is_ended_early(CONFIG, (case("pass", 0.1), early, unrun))
    for cases in (
        (wrong, early),
        (early, case("timeout", 30.0, key="b/0")),
        (case("pass", 0.1),),
        (),
    ):
        assert not is_ended_early(CONFIG, cases)
    assert second_looks(CONFIG, {}, [(wrong, early)], 8) == []


def starved(num_looks: int, num_rounds: int = 50) -> float:
    """Share of slow correct executions (6 s, one a round) that are killed after a lucky fast one
    (10 ms) came first."""
    times, killed = MeasuredTimes({"a/0": Anchor(slowest_s=0.01, num_correct=1)}), 0
    for _ in range(num_rounds):
        (limit,) = times.limits(CONFIG, ["a/0"])
        result = (
            case("pass", 6.0, limit=limit) if limit >= 6.0 else case("timeout", limit, limit=limit)
        )
        killed += result.verdict is CaseVerdict.TIMEOUT
        times.learn(observed(CONFIG, [(result,)]))
        for _ in second_looks(CONFIG, times.anchors, [(result,)], num_looks):
            times.learn(observed(CONFIG, [(case("pass", 6.0),)]))
    return killed / num_rounds


def test_a_lucky_fast_answer_starves_all_slow_ones_but_for_one_round_with_second_looks() -> None:
    assert starved(num_looks=0) == 1.0
    assert starved(num_looks=1) == 1 / 50


def test_measured_times_learn_and_hand_out_limits_by_case() -> None:
    times = MeasuredTimes()
    assert times.limits(CONFIG, ["a/0", "a/1"]) == (30.0, 30.0)
    times.learn({"a/0": Anchor(slowest_s=4.0, num_correct=1)})
    times.learn({"a/0": Anchor(slowest_s=2.0, num_correct=1)})
    assert times.limits(CONFIG, ["a/0", "a/1"]) == (6.0, 30.0)
