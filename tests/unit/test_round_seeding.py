"""The seeding window of a step's round: who decides in it, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tasks.rollout import with_record, with_window
from tasks.rounds.report import WindowRecord
from tasks.scheduling.seeding import PlannedWindow, SeedingWindow
from tasks.scheduling.stream_training import Reading, StreamTrainer, StreamTrainerConfig
from tests.unit.plan_factories import make_report, make_step_plan

ALONE = StreamTrainer(StreamTrainerConfig(), (), 0)
PLANNED = PlannedWindow(window_s=2.0, workers=frozenset({"spot.g1"}))
LATE = Reading(
    num_accepted=0,
    elapsed_s=2.5,
    num_running=3,
    num_elastic_workers=1,
    capacity_tokens={"engine-0": 100},
    running=(),
)


def test_a_step_without_a_window_has_the_plain_stream_trainer() -> None:
    assert with_window(make_step_plan(), ALONE) is ALONE


def test_the_window_frees_the_devices_that_the_run_has_and_is_recorded() -> None:
    window = with_window(replace(make_step_plan(), window=PLANNED), ALONE)
    assert isinstance(window, SeedingWindow)
    (freed,) = window.handle(LATE)
    assert (freed.engines, freed.learners) == (("engine-0",), ("learner-0",))
    played: Any = SimpleNamespace(stream_trainer=window)
    result: Any = SimpleNamespace(freed_s=(3.0,), took_s=9.0)
    report = make_report(()).rollout
    assert with_record(report, played, result, 100.0).window == WindowRecord(
        began_s=100.0, window_s=2.0, closed_s=2.5, is_early=False, freed_s=(3.0,), took_s=9.0
    )
    played.stream_trainer = ALONE
    assert with_record(report, played, result, 100.0) == report
