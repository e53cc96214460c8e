"""What rounds are expected and seen to ask of the engines, and the size that follows by lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.scheduling.batch import BatchConfig, round_shape
from tasks.scheduling.layout_planner import (
    LayoutPlanner,
    ThroughputPoint,
    ThroughputProfile,
    expected_demand,
    seen_demand,
)
from tasks.scheduling.parallelism import LayoutState, PlannerState, RoundReading

SHAPE = round_shape("long", BatchConfig(prompts_per_step=8, responses_per_prompt=8))
# twice the devices: alone a response is twice as fast, of many two small replicas make more
SPEEDS = {(1, 1): 20.0, (1, 32): 320.0, (2, 1): 40.0, (2, 64): 450.0}
PROFILE = ThroughputProfile(
    model="m",
    device="d",
    kv_tokens={1: 10**6, 2: 10**6},
    points=tuple(
        ThroughputPoint(
            size=size,
            batch=batch,
            length=100,
            prefill_tokens_per_s=10_000.0,
            decode_tokens_per_s=speed,
        )
        for (size, batch), speed in SPEEDS.items()
    ),
)
PLANNER = LayoutPlanner(sizes=(1, 2), num_devices=2, first_size=1, profile=PROFILE)
BY_LENGTHS = replace(PLANNER, by_lengths=True)
READING = RoundReading(layout="long", num_preemptions=0, kv_usage_max=0.1)


def test_responses_that_were_stopped_count_as_long_as_the_longest() -> None:
    demand = seen_demand(4, 100, 1_000, (300, 100))
    assert demand.lengths[0] == 100
    assert set(demand.lengths) == {100, 300}
    assert demand.lengths.count(300) == pytest.approx(len(demand.lengths) * 2 / 3, abs=1)
    assert demand.response_tokens == 250


def test_nothing_that_ended_says_nothing_of_lengths() -> None:
    assert seen_demand(4, 100, 1_000).lengths == ()


def test_what_is_expected_reaches_the_bound() -> None:
    lengths = expected_demand(SHAPE, 100, 8_000).lengths
    assert list(lengths) == sorted(lengths)
    assert lengths[-1] == 8_000
    assert sum(lengths) / len(lengths) == pytest.approx(1_000, rel=0.15)


def test_by_lengths_a_tail_is_decoded_by_larger_engines_from_the_first_round_on() -> None:
    demand = expected_demand(SHAPE, 100, 8_000)
    first = [planner.begun(PlannerState(), "long", demand) for planner in (PLANNER, BY_LENGTHS)]
    assert [state.layouts["long"].size for state in first] == [1, 2]


def test_a_size_beyond_what_a_resumed_run_allows_is_given_up() -> None:
    wide = PlannerState(layouts={"long": LayoutState(size=2, preemptions=7)})
    demand = expected_demand(SHAPE, 100, 8_000)
    assert PLANNER.begun(wide, "long", demand) == wide
    narrow = replace(PLANNER, sizes=(1,))
    assert narrow.begun(wide, "long", demand).layouts["long"] == LayoutState(size=1)


def test_by_lengths_a_round_without_tail_goes_back_to_small_ones() -> None:
    state = BY_LENGTHS.begun(PlannerState(), "long", expected_demand(SHAPE, 100, 8_000))
    even = seen_demand(64, 100, 64 * 300, (300,) * 64)
    assert BY_LENGTHS.after(state, READING, even).layouts["long"].size == 1


def test_the_paper_rule_does_not_look_at_lengths() -> None:
    state = PLANNER.begun(PlannerState(), "long", expected_demand(SHAPE, 100, 8_000))
    tail = seen_demand(64, 100, 64 * 300, (*(200,) * 63, 6_500))
    assert PLANNER.after(state, READING, tail).layouts["long"].size == 1
    assert BY_LENGTHS.after(state, READING, tail).layouts["long"].size == 2
