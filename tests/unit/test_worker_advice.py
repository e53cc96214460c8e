"""What a run says of how many elastic workers to hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.prices import PriceConfig
from tasks.elastic.worker_advice import worker_advice
from tasks.metrics.step_cost import own_dollars_per_h
from tests.unit.plan_factories import CONTEXT

OWN = 36.0  # dollars an hour: a cent a second


def figures(present: int, tokens: float, dollars: float, **others: float) -> dict[str, float]:
    """Of a step of 100 seconds, as they are kept."""
    return {
        "elastic/present": float(present),
        "elastic/joined": 0.0,
        "elastic/lost": 0.0,
        "ledger/trained_tokens": tokens,
        "cost/added_s": 100.0,
        "cost/dollars": dollars,
        **{f"elastic/{name}": value for name, value in others.items()},
    }


def test_the_number_that_trains_most_for_a_dollar_is_told_beside_the_others() -> None:
    steps = [
        figures(0, 500.0, 1.0),
        figures(0, 1000.0, 1.0),
        figures(2, 900.0, 1.2, joined=2.0),  # not from its beginning
        figures(2, 1800.0, 1.5),
        figures(3, 9000.0, 1.6, joined=1.0),
        figures(3, 1820.0, 1.75),
    ]
    told = "2 elastic workers train most for a dollar: 1,200 tokens (0: 1,000, 3: 1,040)"
    assert worker_advice(steps, OWN) == told


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [figures(2, 100.0, 1.0)],  # nobody knows who was there before
        [figures(0, 100.0, 1.0), figures(0, 100.0, 1.0)],
        [figures(2, 100.0, 1.0), figures(2, 100.0, 1.0, lost=1.0)],
        [figures(2, 100.0, 1.0), figures(1, 100.0, 1.0)],
        [figures(2, 100.0, 0.0), figures(2, 100.0, 0.0)],  # nothing has a price
        [{}, {}],
    ],
)
def test_nothing_is_said_where_no_step_had_the_same_elastic_workers_all_the_time(
    steps: list[dict[str, float]],
) -> None:
    assert worker_advice(steps, OWN) == ""


def test_a_run_pays_for_each_of_its_own_devices_once() -> None:
    prices = PriceConfig(classes={"reserved": 10.0, "spot": 2.0})
    devices = {"engine-0": "cuda:0", "learner-0": "cuda:0", "engine-1": "cuda:1", "reward": "host"}
    run = replace(CONTEXT, devices=devices, prices=prices)
    assert own_dollars_per_h(run) == 20.0
    assert own_dollars_per_h(replace(run, prices=PriceConfig())) == 0.0
