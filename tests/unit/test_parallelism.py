"""The parallelism planner: the paper's rule on recorded and generated statistics, and the layouts a
host allows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.parallelism import (
    JUMP,
    QUIET_ROUNDS,
    LayoutState,
    PlannerState,
    RoundReading,
    device_groups,
    is_jump,
    observe,
    possible_sizes,
)

SIZES = (1, 2, 4, 8)
LAYOUTS = ("sync", "short", "long")
DEVICES = st.sets(st.integers(0, 31), min_size=1).map(sorted)
HOSTS = st.sampled_from([1, 2, 4, 8])


def reading(preemptions: int, layout: str = "short", kv_usage: float = 0.5) -> RoundReading:
    return RoundReading(layout=layout, num_preemptions=preemptions, kv_usage_max=kv_usage)


READINGS = st.lists(
    st.builds(
        reading,
        st.one_of(st.just(0), st.integers(0, 6000)),
        st.sampled_from(LAYOUTS),
        st.floats(0, 1),
    ),
    max_size=60,
)


def starting_at(size: int) -> PlannerState:
    return PlannerState(layouts={kind: LayoutState(size=size) for kind in LAYOUTS})


def sizes_after(counts: list[int], start: int = 1) -> list[int]:
    """The size of the short round after each of these preemption counts."""
    state, sizes = starting_at(start), []
    for count in counts:
        state = observe(state, reading(count), SIZES, {})
        sizes.append(state.layouts["short"].size)
    return sizes


def test_a_jump_of_preemptions_doubles_the_size() -> None:
    assert sizes_after([5000, 5199, 5500, 4102]) == [1, 1, 2, 2]


def test_a_rise_within_five_per_cent_changes_nothing() -> None:
    assert sizes_after([5000, 5250]) == [1, 1]
    assert sizes_after([5000, 5251]) == [1, 2]


def test_first_preemptions_after_none_are_a_jump() -> None:
    assert sizes_after([0, 3]) == [1, 2]


def test_a_rise_of_a_few_is_chance() -> None:
    """By the paper's factor alone each of these doubles, and a size that grew by chance waits four
    quiet rounds."""
    assert sizes_after([0, 1, 2, 3, 4, 6, 8, 10, 12, 15]) == [1] * 10


def test_four_quiet_rounds_halve_the_size() -> None:
    assert sizes_after([0, 0, 0, 0, 0, 0, 0, 0], start=4) == [4, 4, 4, 2, 2, 2, 2, 1]


def test_a_preemption_begins_the_count_of_quiet_rounds_anew() -> None:
    assert sizes_after([9, 0, 0, 0, 1, 0, 0, 0], start=8) == [8] * 8


def test_figure_6_ends_with_a_larger_size_for_short_rounds_than_for_long_ones() -> None:
    """Preemptions per step at size 1 and 2 (Qwen3-8B, 32k, 8 H800); lengths grow as training goes
    on, so short rounds jump first."""
    measured = {("short", 1): 5199, ("long", 1): 2900, ("short", 2): 4102, ("long", 2): 2601}
    state = starting_at(1)
    for growth in (0.85, 0.92, 1.0, 1.0):
        preemptions = growth * measured["short", state.layouts["short"].size]
        state = observe(state, reading(round(preemptions), "short"), (1, 2), {})
    state = observe(state, reading(measured["long", 1], "long"), (1, 2), {})
    assert {kind: state.layouts[kind].size for kind in ("short", "long")} == {"short": 2, "long": 1}


def test_each_layout_has_a_size_of_its_own() -> None:
    state = observe(
        observe(starting_at(1), reading(0, "short"), SIZES, {}), reading(10, "short"), SIZES, {}
    )
    assert {kind: one.size for kind, one in state.layouts.items()} == {
        "sync": 1,
        "short": 2,
        "long": 1,
    }


def test_a_cache_that_would_overflow_at_half_the_size_keeps_it() -> None:
    """At size 2 a replica has room for 100 tokens and half of that is full; two replicas of size 1
    have 10 each."""
    quiet = starting_at(2)
    for _ in range(2 * QUIET_ROUNDS):
        quiet = observe(quiet, reading(0, kv_usage=0.5), SIZES, {1: 10, 2: 100})
    assert quiet.layouts["short"].size == 2
    assert (
        observe(quiet, reading(0, kv_usage=0.19), SIZES, {1: 10, 2: 100}).layouts["short"].size == 1
    )


@given(readings=READINGS, sizes=st.sampled_from([(1,), (1, 2), (1, 2, 4), SIZES]))
def test_every_change_is_one_that_the_rule_allows(
    readings: list[RoundReading], sizes: tuple[int, ...]
) -> None:
    """Doubled only on a jump, halved only after four quiet rounds of the kind since its last
    change, always a possible size."""
    state = starting_at(sizes[-1])
    counts: dict[str, list[int]] = {kind: [] for kind in LAYOUTS}
    for one in readings:
        before, state = state, observe(state, one, sizes, {})
        changed = {name for name in LAYOUTS if before.layouts[name] != state.layouts[name]}
        assert changed <= {one.layout}
        old, new = before.layouts[one.layout].size, state.layouts[one.layout].size
        history = [*counts[one.layout], one.num_preemptions]
        assert new in sizes
        if new > old:
            assert new == 2 * old
            assert len(history) > 1 or before.layouts[one.layout].preemptions is not None
            assert is_jump(before.layouts[one.layout].preemptions or 0, one.num_preemptions)
            assert one.num_preemptions > JUMP * (before.layouts[one.layout].preemptions or 0)
        if new < old:
            assert 2 * new == old
            assert len(history) >= QUIET_ROUNDS
            assert not any(history[-QUIET_ROUNDS:])
        counts[one.layout] = [] if new != old else history


@given(readings=READINGS)
def test_the_state_comes_back_from_json_and_goes_on_alike(readings: list[RoundReading]) -> None:
    state = revived = starting_at(2)
    for one in readings:
        state, revived = observe(state, one, SIZES, {}), observe(revived, one, SIZES, {})
        revived = PlannerState.from_json(json.loads(json.dumps(revived.to_json())))
        assert revived == state


def test_no_state_is_kept_of_a_run_without_a_planner() -> None:
    assert PlannerState.from_json({}) == PlannerState()


@given(
    devices=DEVICES,
    devices_per_host=HOSTS,
    heads=st.integers(1, 64),
    kv_heads=st.sampled_from([1, 2, 3, 4, 8]),
    largest=st.integers(1, 16),
)
def test_every_possible_size_can_be_laid_out(
    devices: list[int], devices_per_host: int, heads: int, kv_heads: int, largest: int
) -> None:
    sizes = possible_sizes(devices, devices_per_host, heads, kv_heads, largest)
    assert sizes[0] == 1
    for size in sizes:
        groups = device_groups(devices, size, devices_per_host)
        assert sorted(device for group in groups for device in group) == devices
        assert {len(group) for group in groups} == {size}
        assert all(
            len({device // devices_per_host for device in group}) == 1 for group in groups
        ), "a replica spans two hosts"
        assert heads % size == 0
        assert size <= largest


@given(devices=DEVICES, devices_per_host=HOSTS, size=st.integers(1, 9))
def test_a_layout_never_splits_a_host_or_is_refused(
    devices: list[int], devices_per_host: int, size: int
) -> None:
    per_host = [sum(device // devices_per_host == host for device in devices) for host in range(32)]
    if any(num % size for num in per_host):
        with pytest.raises(ValueError, match="tensor_parallel_size must divide"):
            device_groups(devices, size, devices_per_host)
        return
    groups = device_groups(devices, size, devices_per_host)
    assert all(len({device // devices_per_host for device in group}) == 1 for group in groups)


def test_sizes_follow_hosts_and_heads() -> None:
    assert possible_sizes(range(8), 8, 32, 8, 8) == (1, 2, 4, 8)
    assert possible_sizes(range(8), 4, 32, 8, 8) == (1, 2, 4)
    assert possible_sizes(range(6), 8, 32, 8, 8) == (1, 2)
    assert possible_sizes(range(8), 8, 9, 3, 8) == (1,), "nine heads cannot be shared out evenly"
    assert possible_sizes(range(8), 8, 32, 8, 2) == (1, 2)


def test_a_size_that_does_not_fit_is_named_with_its_cure() -> None:
    with pytest.raises(
        ValueError,
        match=r"got 4 for the 6 of host 0; change it, cluster\.roles or cluster\.devices_per_host",
    ):
        device_groups(range(6), 4, 8)


def test_the_size_survives_a_round_that_says_nothing_new() -> None:
    state = observe(starting_at(2), reading(5), SIZES, {})
    again = observe(state, reading(5), SIZES, {})
    assert again == state
    assert replace(again.layouts["short"], preemptions=None) == LayoutState(size=2)
