"""The throughput profile: it comes back from JSON, interpolates, and chooses a first size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.layout_planner import (
    Demand,
    ThroughputPoint,
    ThroughputProfile,
    best_size,
    not_slower,
)


def point(
    size: int, batch: int, decode: float, length: int = 100, prefill: float = 10_000.0
) -> ThroughputPoint:
    return ThroughputPoint(
        size=size,
        batch=batch,
        length=length,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=decode,
    )


def profile(*points: ThroughputPoint, kv_tokens: dict[int, int] | None = None) -> ThroughputProfile:
    return ThroughputProfile(
        model="m", device="d", kv_tokens=kv_tokens or {1: 10_000, 2: 40_000}, points=points
    )


SCALING = (point(1, 1, 50.0), point(1, 32, 800.0), point(2, 1, 80.0), point(2, 32, 1300.0))


def test_a_profile_comes_back_from_json() -> None:
    made = profile(*SCALING)
    assert ThroughputProfile.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 9}', '{"version": 1, "points": [{}], "kv_tokens": {}}']
)
def test_something_else_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match=r"a profile must be the JSON of 'rollflow calibrate'"):
        ThroughputProfile.from_json(text)


def test_rates_lie_between_the_measured_batches() -> None:
    demand = Demand(num_responses=16, prompt_tokens=100, response_tokens=400)
    seconds = profile(*SCALING, kv_tokens={1: 10**6}).predicted_s(1, 1, demand)
    decode = 50 + 15 / 31 * 750
    assert seconds == pytest.approx(16 * (100 / 10_000 + 400 / decode))


def test_a_batch_beyond_the_measured_ones_gets_the_last_rate() -> None:
    demand = Demand(num_responses=64, prompt_tokens=100, response_tokens=400)
    assert profile(*SCALING, kv_tokens={1: 10**6}).predicted_s(1, 1, demand) == pytest.approx(
        64 * (0.01 + 0.5)
    )


def test_more_replicas_win_while_the_cache_has_room_and_a_larger_size_when_it_has_not() -> None:
    roomy = profile(*SCALING, kv_tokens={1: 10**6, 2: 10**6})
    tight = profile(*SCALING, kv_tokens={1: 1_000, 2: 40_000})
    demand = Demand(num_responses=64, prompt_tokens=100, response_tokens=400)
    assert best_size(roomy, (1, 2), 2, demand) == 1
    assert best_size(tight, (1, 2), 2, demand) == 2


def test_only_measured_sizes_are_chosen() -> None:
    demand = Demand(num_responses=8, prompt_tokens=100, response_tokens=100)
    assert best_size(profile(point(2, 8, 100.0)), (1, 2, 4), 4, demand) == 2
    with pytest.raises(ValueError, match=r"must have measured a possible size \(1, 4\).*--sizes 1"):
        best_size(profile(point(2, 8, 100.0)), (1, 4), 4, demand)


def test_a_size_that_would_be_slower_is_ruled_out_as_long_as_it_was_measured() -> None:
    roomy = profile(*SCALING, kv_tokens={1: 10**6, 2: 10**6})
    demand = Demand(num_responses=64, prompt_tokens=100, response_tokens=400)
    assert not_slower(roomy, (1, 2, 4), 1, 2, demand) == (1, 4), (
        "two is slower, of four nothing is known"
    )
    assert not_slower(roomy, (1, 2), 2, 2, demand) == (1, 2)
    assert not_slower(roomy, (1, 2, 4), 4, 2, demand) == (1, 2, 4)


@given(
    num_responses=st.integers(1, 500),
    prompt_tokens=st.integers(1, 5000),
    response_tokens=st.integers(1, 40_000),
    num_devices=st.sampled_from([2, 4, 8]),
)
def test_a_prediction_is_positive_and_grows_with_the_round(
    num_responses: int, prompt_tokens: int, response_tokens: int, num_devices: int
) -> None:
    made = profile(*SCALING)
    demand = Demand(
        num_responses=num_responses, prompt_tokens=prompt_tokens, response_tokens=response_tokens
    )
    seconds = made.predicted_s(2, num_devices, demand)
    assert (
        0
        < seconds
        <= made.predicted_s(
            2,
            num_devices,
            Demand(
                num_responses=num_responses,
                prompt_tokens=prompt_tokens,
                response_tokens=2 * response_tokens,
            ),
        )
    )


def test_lengths_that_are_all_the_same_take_what_their_mean_takes() -> None:
    known = profile(*SCALING, kv_tokens={1: 10**6})
    mean = Demand(num_responses=16, prompt_tokens=100, response_tokens=400)
    assert known.predicted_s(1, 1, replace(mean, lengths=(400,) * 4)) == pytest.approx(
        known.predicted_s(1, 1, mean)
    )


def test_the_last_responses_decode_alone() -> None:
    """Of two responses one goes on for 900 tokens after the other."""
    known = profile(point(1, 1, 50.0), point(1, 2, 80.0), kv_tokens={1: 10**6})
    demand = Demand(num_responses=2, prompt_tokens=100, response_tokens=550, lengths=(100, 1000))
    assert known.predicted_s(1, 1, demand) == pytest.approx(0.02 + 200 / 80 + 900 / 50)


def test_a_long_tail_gets_the_larger_engines() -> None:
    roomy = profile(*SCALING, kv_tokens={1: 10**6, 2: 10**6})
    demand = Demand(num_responses=64, prompt_tokens=100, response_tokens=400)
    long = replace(demand, lengths=(*(300,) * 63, 6_700))
    assert best_size(roomy, (1, 2), 2, demand) == 1
    assert best_size(roomy, (1, 2), 2, long) == 2
