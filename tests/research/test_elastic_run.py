"""Simulated runs with spot workers: whole steps, the same each time, every second paid for once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from artifacts.reports.device_cost import Window, held_seconds
from research.paper.polyrl import VARIANTS
from research.spot.elastic_run import ElasticRun, play
from research.spot.elastic_shapes import SpotShape
from research.spot.spot_traces import SEGMENTS, TraceChange, steady
from tasks.engines.simulation.writers import LengthModel

SMALL = SpotShape(
    parameters=1e9,
    cache_bytes=50_000,
    num_own=2,
    num_prompts=8,
    responses_per_prompt=4,
    longest_tokens=2000,
    lengths=LengthModel(median_tokens=300, sigma=0.8),
    update_s=0.5,
    publish_s=0.2,
    build_s=2.0,
    load_s=0.1,
)
RUN = ElasticRun(shape=SMALL, num_steps=3)


def test_workers_that_come_and_go_cost_no_group_and_no_second_twice() -> None:
    changes = (
        TraceChange(time_s=1.0, change=2),
        TraceChange(time_s=6.0, change=-1),
        TraceChange(time_s=9.0, change=-1),
        TraceChange(time_s=12.0, change=1),
    )
    run = replace(RUN, trace=changes, num_steps=4, notice_s=0.5)
    played = play(run)
    assert len(played.steps) == 4  # a step that lacked a group would not have ended
    assert played == play(run)
    first, last = played.steps[0].start_s, played.steps[-1].end_s
    whole = held_seconds(played.held, Window(start_s=first, end_s=last))
    paid_s = sum(step.figures.get("cost/spot_worker_s", 0.0) for step in played.steps)
    assert paid_s == pytest.approx(whole["spot"])


def test_what_was_told_of_a_killed_workers_responses_is_not_generated_again() -> None:
    def overhead_s(report_tokens: int) -> float:
        run = replace(
            RUN,
            shape=replace(SMALL, report_tokens=report_tokens),
            trace=steady(2),
            num_steps=1,
            seeds=False,
            notice_s=0.0,
        )
        whole = play(run).steps[0]
        late_s = 0.7 * whole.start_s + 0.3 * whole.end_s
        killed = replace(run, trace=(*run.trace, TraceChange(time_s=late_s, change=-1)))
        return play(killed).steps[0].end_s - whole.end_s

    assert 0 < overhead_s(report_tokens=8) < overhead_s(report_tokens=0)


def test_without_workers_seeding_is_the_trainer_alone() -> None:
    plain, seeded = play(RUN), play(replace(RUN, seeds=False))
    assert plain.steps == seeded.steps
    assert not any("cost/spot_worker_s" in step.figures for step in plain.steps)


@pytest.mark.parametrize(("num_workers", "moved_s"), [(0, 8 * 4 * 0.5), (2, 0.0)])
def test_the_driver_hands_out_a_plain_round_at_its_end(num_workers: int, moved_s: float) -> None:
    """Responses move while others are trained where learners were freed in mid-round."""

    def seconds(move_s: float) -> float:
        shape = replace(SMALL, move_s=move_s)
        run = replace(RUN, shape=shape, trace=steady(num_workers), num_steps=1, seeds=False)
        (step,) = play(run).steps
        return step.end_s - step.start_s

    assert seconds(0.5) - seconds(0.0) == pytest.approx(moved_s)


@pytest.mark.parametrize(("name", "usual"), [("A", 5.3), ("B", 2.25), ("C", 3.75)])
def test_a_drawn_segment_offers_what_its_market_says(name: str, usual: float) -> None:
    hours = 200 * 3600.0
    trace = SEGMENTS[name].trace(0, hours)
    assert trace == SEGMENTS[name].trace(0, hours)
    assert mean_workers(trace, hours) == pytest.approx(usual, rel=0.1)


def test_rounds_of_each_kind_find_a_window_of_their_own() -> None:
    run = replace(RUN, trace=steady(1), num_steps=10, **VARIANTS["both"])
    shared, own = play(run), play(replace(run, windows_by_kind=True))
    first = next(step for step in own.steps if step.kind == "long")
    alike = next(step for step in shared.steps if step.kind == "long")
    # it knows no window yet, and those of short rounds are none of its
    assert first.times.window_s > alike.times.window_s
    assert own != shared


def mean_workers(trace: Sequence[TraceChange], duration_s: float) -> float:
    """Workers on average, were every offered one taken."""
    total = now_s = 0.0
    present = 0
    for change in (*trace, TraceChange(time_s=duration_s, change=0)):
        until_s = min(change.time_s, duration_s)
        total += present * (until_s - now_s)
        now_s = until_s
        present = max(0, present + change.change)
    return total / duration_s
