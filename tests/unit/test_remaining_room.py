"""Projected lengths of running responses, and the KV use that they lead to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.stream_training import RemainingRoom, RunningRequest


def response(prompt: int = 10, tokens: int = 5, bound: int = 100) -> RunningRequest:
    return RunningRequest(
        engine="engine-0", prompt_tokens=prompt, num_tokens=tokens, max_new_tokens=bound
    )


def room(lengths: Sequence[int] = (), max_running: int = 64, kv_share: float = 1) -> RemainingRoom:
    return RemainingRoom(max_running, kv_share, lengths)


@pytest.mark.parametrize(
    ("lengths", "tokens", "projected"),
    [
        ((), 5, 100),  # nothing known: the bound
        ((10, 20, 30, 40), 5, 40),
        ((10,) * 95 + (90,) * 5, 5, 10),  # the quantile, not the maximum
        (
            (10,) * 95 + (90,) * 5,
            10,
            90,
        ),  # but a response that is longer already is one of the long ones
        ((10, 20), 20, 100),  # longer than all before: the bound
        ((500,), 5, 100),
    ],
)
def test_a_response_is_projected_from_those_that_got_longer(
    lengths: tuple[int, ...], tokens: int, projected: int
) -> None:
    assert room(lengths).projected_length(response(tokens=tokens)) == projected


def test_the_projected_peak_counts_what_ends_before_it() -> None:
    short, long = response(tokens=90), response(tokens=0)
    assert room().projected_peak_tokens([short, long]) == max(110 + 20, 110)
    assert room().projected_peak_tokens([]) == 0


def test_a_share_of_all_caches_together_must_hold_the_peak() -> None:
    running = [response(tokens=50)] * 2  # 110 tokens each in the end
    assert room(kv_share=0.5).fits(running, [40, 400])
    assert not room(kv_share=0.5).fits(running, [39, 400])


def test_an_engine_takes_so_many_responses_however_short() -> None:
    running = [response(tokens=99)] * 5
    assert not room(max_running=2).fits(running, [10_000, 10_000])
    assert room(max_running=2).fits(running, [10_000, 10_000, 10_000])


responses = st.builds(response, st.integers(1, 200), st.integers(0, 99), st.just(100))


def naive_peak(found: RemainingRoom, running: Sequence[RunningRequest]) -> int:
    """Step by step."""
    peak, step = 0, 0
    while True:
        alive = [one for one in running if found.projected_length(one) - one.num_tokens >= step]
        if not alive:
            return peak
        peak = max(peak, sum(one.held_tokens + step for one in alive))
        step += 1


@given(st.lists(responses, max_size=12), st.lists(st.integers(1, 100), max_size=20))
def test_the_projected_peak_is_that_of_decoding_step_by_step(
    running: list[RunningRequest], lengths: list[int]
) -> None:
    found = room(lengths)
    assert found.projected_peak_tokens(running) == naive_peak(found, running)
