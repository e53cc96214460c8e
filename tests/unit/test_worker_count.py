"""How many workers to hold: what trains most for a dollar, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.elastic.worker_advice import (
    Known,
    WorkerCountSteps,
    tokens_per_dollar,
    with_step,
    workers_to_hold,
)

STEP_TOKENS = 3600.0


def known(seconds: Mapping[int, float]) -> Known:
    """Steps of as many tokens, by the seconds that they took."""
    return {
        count: WorkerCountSteps(tokens=STEP_TOKENS, seconds=each) for count, each in seconds.items()
    }


# 36, 48, 60 and 64 thousand tokens an hour
STEPS = known({0: 360.0, 1: 270.0, 2: 216.0, 4: 202.5})


def test_tokens_for_a_dollar_are_those_of_an_hour_over_what_the_hour_costs() -> None:
    assert tokens_per_dollar(STEPS, 10.0, 2.0) == pytest.approx(
        {0: 36_000 / 10, 1: 48_000 / 12, 2: 60_000 / 14, 4: 64_000 / 18}
    )


@pytest.mark.parametrize(
    ("dollars", "number"),
    [
        (0.0, 4),  # for nothing: the fastest
        (0.3, 4),  # 64/11.2 = 5.71 beside 60/10.6 = 5.66
        (0.4, 2),  # 60/10.8 = 5.56 beside 64/11.6 = 5.52
        (3.0, 2),  # 60/16 = 3.75 beside 48/13 = 3.69 and 36/10 = 3.6
        (3.3, 2),  # 60/16.6 = 3.614 beside 48/13.3 = 3.609 and 3.6
        (3.4, 0),  # 3.6 beside 60/16.8 = 3.57 and 48/13.4 = 3.58
    ],
)
def test_the_dearer_a_worker_the_fewer_are_held(dollars: float, number: int) -> None:
    assert workers_to_hold(tokens_per_dollar(STEPS, 10.0, dollars)) == number


def test_of_numbers_that_are_worth_the_same_the_larger_is_held() -> None:
    # twice the tokens for twice the dollars
    assert workers_to_hold(tokens_per_dollar(known({0: 200.0, 2: 100.0}), 4.0, 2.0)) == 2
    assert workers_to_hold(tokens_per_dollar({}, 4.0, 2.0)) is None


def test_later_steps_count_more() -> None:
    first = with_step({}, 2, WorkerCountSteps(tokens=1000.0, seconds=100.0))
    second = with_step(first, 2, WorkerCountSteps(tokens=1000.0, seconds=50.0))
    assert second[2].tokens == pytest.approx(1700.0)
    assert second[2].seconds == pytest.approx(120.0)
    assert with_step(second, 3, WorkerCountSteps(tokens=1.0, seconds=1.0)).keys() == {2, 3}


@given(
    st.dictionaries(st.integers(0, 9), st.floats(1.0, 1e4), min_size=1),
    st.floats(0.1, 100.0),
    st.floats(0.0, 100.0),
    st.floats(1.0, 100.0),
)
def test_a_rise_of_the_price_never_asks_for_more(
    seconds: dict[int, float], own: float, worker: float, rise: float
) -> None:
    cheap = workers_to_hold(tokens_per_dollar(known(seconds), own, worker))
    dear = workers_to_hold(tokens_per_dollar(known(seconds), own, worker + rise))
    assert cheap is not None
    assert dear is not None
    assert dear <= cheap
