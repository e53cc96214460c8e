"""What a step says of the engines that joined its round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_worker_factories import Door, WatchedEngine, joined
from plan_factories import make_report, make_step_plan
from round_factories import make_plan, play

from artifacts.records import Span
from artifacts.reports.timeline import bubble_shares, device_times, visiting_times
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.metrics.step_metrics import step_metrics
from tasks.rounds.report import close_round, read_round, round_report
from tasks.run.run_context import store_of
from tasks.scheduling.queue_state import QueueState

PLAN = make_plan(domains=("a",) * 6, accept_per_prompt=4)


def generated(device: str, start_s: float, end_s: float) -> Span:
    return Span(device=device, actor=device, kind="rollout", start_s=start_s, end_s=end_s)


def test_the_report_of_a_round_has_the_devices_of_its_elastic_workers() -> None:
    async def work() -> None:
        door = Door(joined(WatchedEngine("elastic-worker-0.g1")))
        result = await play(PLAN, [WatchedEngine("engine-0")], elastic_workers=door)
        report = round_report(result, [], {"engine-0": ["cpu:0"]}, is_evaluation=False)
        assert {(span.device, span.actor) for span in report.spans} == {
            ("cpu:0", "engine-0"),
            ("elastic-worker-0.g1:0", "elastic-worker-0.g1"),
        }
        assert report.joined == {"elastic-worker-0.g1": ("elastic-worker-0.g1:0",)}
        plan = make_step_plan(7)
        close_round(store_of(plan), plan.step, report)
        assert read_round(store_of(plan), plan.step) == report

    run_virtual(work())


def test_a_device_that_comes_and_goes_has_bubbles_only_while_it_is_there() -> None:
    spans = (generated("cpu:0", 0, 10), generated("elastic worker:0", 2, 4))
    spans = (*spans, generated("elastic worker:0", 6, 8))
    (elastic_worker,) = visiting_times(spans, ["elastic worker:0"], 0, 20)
    assert (elastic_worker.work_s["rollout"], elastic_worker.total_s) == (4, 6)
    assert visiting_times(spans, ["nobody"], 0, 20)[0].total_s == 0


def test_the_bubbles_of_a_step_are_those_of_all_devices() -> None:
    spans = (
        generated("cpu:0", 0, 10),
        generated("elastic worker:0", 2, 4),
        generated("elastic worker:0", 6, 7),
    )
    report = make_report(spans)
    alone = step_metrics(report, QueueState(), ())["bubble/tail_fraction"]
    told = replace(
        report, rollout=replace(report.rollout, joined={"elastic_worker.g1": ("elastic worker:0",)})
    )
    own = device_times(spans, ["cpu:0"], 0, 10)
    elastic_worker = visiting_times(spans, ["elastic worker:0"], 0, 10)
    expected = bubble_shares([*own, *elastic_worker])["tail"]
    assert step_metrics(told, QueueState(), ())["bubble/tail_fraction"] == pytest.approx(expected)
    assert (alone, expected) == (0, pytest.approx(2 / 15))
