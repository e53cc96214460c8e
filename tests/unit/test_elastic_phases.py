"""What elastic workers are held for when they do not generate, told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.records import Span
from artifacts.reports.device_cost import IDLE, Window, used_seconds
from flows.commands.compare import use_lines
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.worker_events import (
    AdmittedWorker,
    Emptied,
    Leaves,
    Loaded,
    Polled,
    Renewed,
    Took,
)
from tasks.metrics.report import StepReport
from tasks.metrics.step_cost import cost_metrics, elastic_worker_devices, elastic_worker_spans
from tests.unit.plan_factories import make_report
from tests.unit.worker_factories import RULES, comes

WINDOW = Window(start_s=0.0, end_s=100.0)
HERE = frozenset({"a"})
# admitted at 10, its engine is built until 16, a second for pull and three for load: there at 20
JOINED = (
    Polled(at_s=9.0, addresses=HERE),
    Loaded(
        at_s=20.0,
        name="spot.g1",
        version=1,
        took=Took(build_s=6.0, pull_s=1.0, load_s=3.0),
    ),
)


def generated(start_s: float, end_s: float) -> Span:
    return Span(device="spot/cpu", actor="spot.g1", kind="rollout", start_s=start_s, end_s=end_s)


def lived(*events: Polled | Loaded | Leaves | Emptied | Renewed) -> tuple[AdmittedWorker, ...]:
    """The elastic worker after these, from its admission on."""
    admission = WorkerAdmission(RULES)
    admission.handle(JOINED[0])
    comes(admission, "a", at_s=10.0)
    for event in (JOINED[1], *events):
        admission.handle(event)
    return admission.workers


def report_of(*spans: Span, interrupted: bool = False) -> StepReport:
    made = make_report(spans, started_s=5.0, finished_s=100.0)
    lost = ("spot.g1",) if interrupted else ()
    return replace(made, rollout=replace(made.rollout, interrupted=lost))


def used(elastic_workers: tuple[AdmittedWorker, ...], report: StepReport) -> dict[str, float]:
    """Seconds by use, those that are none left out."""
    held = elastic_worker_devices(elastic_workers, WINDOW)
    spans = [*report.spans, *elastic_worker_spans(elastic_workers, report, WINDOW)]
    seconds = used_seconds(held, spans, WINDOW)["spot"]
    return {use: pytest.approx(used_s) for use, used_s in seconds.items() if used_s}


def test_an_elastic_worker_starts_gets_weights_generates_and_waits() -> None:
    later = Loaded(at_s=62.0, name="spot.g1", version=2, took=Took(pull_s=1.5, load_s=0.5))
    seconds = used(lived(later), report_of(generated(25.0, 50.0), generated(62.0, 92.0)))
    expected = {"starting": 6.0, "transferring": 4.0 + 2.0, "generating": 55.0}
    assert seconds == expected | {IDLE: 90.0 - 67.0}


def test_one_that_leaves_drains_until_it_is_gone() -> None:
    renewed = Renewed(at_s=39.0, dask_name="spot")
    leaves = (Polled(at_s=40.0, addresses=HERE), Leaves(dask_name="spot", reason="spot notice"))
    gone = (Polled(at_s=48.0, addresses=HERE), Emptied(name="spot.g1"))
    seconds = used(lived(renewed, *leaves, *gone), report_of(generated(20.0, 42.0)))
    assert seconds == {"starting": 6.0, "transferring": 4.0, "generating": 22.0, "draining": 6.0}


def test_one_that_died_at_work_is_lost_from_the_last_tokens_that_were_kept() -> None:
    heard = (Renewed(at_s=38.0, dask_name="spot"), Polled(at_s=45.0, addresses=frozenset()))
    seconds = used(lived(*heard), report_of(generated(20.0, 31.0), interrupted=True))
    assert seconds == {"starting": 6.0, "transferring": 4.0, "generating": 11.0, "lost": 14.0}


def test_one_that_died_idle_is_lost_from_its_last_sign_of_life() -> None:
    heard = (Renewed(at_s=38.0, dask_name="spot"), Polled(at_s=45.0, addresses=frozenset()))
    seconds = used(lived(*heard), report_of(generated(20.0, 31.0)))
    lost = {"lost": 7.0, IDLE: 7.0}
    assert seconds == lost | {"starting": 6.0, "transferring": 4.0, "generating": 11.0}


def test_one_that_never_came_up_was_starting() -> None:
    admission = WorkerAdmission(RULES)
    admission.handle(JOINED[0])
    comes(admission, "a", at_s=10.0)
    admission.handle(Polled(at_s=30.0, addresses=frozenset()))
    assert used(admission.workers, report_of()) == {"starting": 20.0}


def test_a_step_has_the_uses_of_its_elastic_workers_and_a_comparison_says_them() -> None:
    figures = cost_metrics(report_of(generated(20.0, 60.0)), 0.0, lived())
    uses = {name: value for name, value in figures.items() if name.startswith("cost/spot_")}
    assert uses.pop("cost/spot_worker_s") == pytest.approx(sum(uses.values())) == 90.0
    assert (uses["cost/spot_starting_s"], uses["cost/spot_draining_s"]) == (6.0, 0.0)
    assert "cost/reserved_lost_s" not in figures
    _, line = use_lines("elastic", {name: {1: value} for name, value in figures.items()})
    told = "44.4% generating, 4.4% transferring, 6.7% starting, 44.4% idle."
    assert line == f"elastic: spot devices were held for 90 s: {told}"
