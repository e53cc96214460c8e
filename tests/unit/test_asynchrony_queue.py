"""The queueing model beside the simulated asynchrony."""

from __future__ import annotations

import pytest

from benchmarks.asynchronous_simulated import play
from benchmarks.asynchrony_models import MODEL
from benchmarks.asynchrony_queue import Queued, QueueModel, Rules, drawn_seconds
from tasks.scheduling.asynchronous_round import AtDeadline
from tasks.scheduling.policies.asynchronous import AsynchronousConfig

HEAVY = drawn_seconds(0.05)


def queued(rules: Rules, num_steps: int = 100) -> Queued:
    return QueueModel(rules, HEAVY, num_steps).play()


@pytest.mark.parametrize("at_deadline", ["wait", "train_anyway", "drop"])
def test_its_published_figures_follow_from_its_rules(at_deadline: AtDeadline) -> None:
    plain = queued(Rules(async_ratio=0.0))
    for ratio, published in MODEL["heavy", at_deadline].items():
        found = queued(Rules(async_ratio=ratio, at_deadline=at_deadline))
        assert plain.seconds / found.seconds == pytest.approx(published.speedup, rel=0.05)


@pytest.mark.parametrize("at_deadline", ["wait", "drop"])
def test_with_the_schedulers_rules_it_takes_the_time_of_the_simulated_system(
    at_deadline: AtDeadline,
) -> None:
    """Rollflow stops what runs of a group that it gives up."""
    policy = AsynchronousConfig(async_ratio=2.0, at_deadline=at_deadline)
    rules = Rules(async_ratio=2.0, at_deadline=at_deadline, stops_given_up=True)
    found = play(policy, 20, long_share=0.05)
    assert queued(rules, 20).seconds == pytest.approx(found.seconds, rel=0.01)


def test_slots_that_run_on_for_nobody_make_dropping_slower() -> None:
    runs_on = queued(Rules(async_ratio=2.0, at_deadline="drop"))
    stops = queued(Rules(async_ratio=2.0, at_deadline="drop", stops_given_up=True))
    assert runs_on.seconds > 1.2 * stops.seconds
    assert runs_on.trained_s == pytest.approx(stops.trained_s, rel=0.05)


def test_closing_ahead_parks_more_and_takes_longer() -> None:
    patient = Rules(async_ratio=4.0, at_deadline="park", stops_given_up=True)
    hasty = Rules(async_ratio=4.0, at_deadline="park", stops_given_up=True, closes_ahead=True)
    assert queued(hasty).lost_share > 1.2 * queued(patient).lost_share
    assert queued(hasty).seconds > 1.1 * queued(patient).seconds
