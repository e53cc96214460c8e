"""What a step held and what it cost, from the report of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.prices import HOUR_S
from artifacts.records import Fate
from artifacts.reports.device_cost import (
    Held,
    Window,
    cost_figures,
    held_seconds,
    use_figures,
    used_seconds,
)
from tasks.elastic.engine import shown_devices
from tasks.elastic.worker_events import AdmittedWorker
from tasks.metrics.elastic_phases import elastic_worker_spans
from tasks.metrics.report import StepReport
from tasks.run.run_context import RunContext


def cost_metrics(
    report: StepReport, before_s: float, elastic_workers: Sequence[AdmittedWorker] = ()
) -> dict[str, float]:
    """The cost figures of a step by their names.

    before_s: when the step before it was over, or this attempt at the run began; 0 for the step's
    own beginning. A step pays from then on, so that an evaluation, a checkpoint and an attempt that
    failed are paid by the step after them, and the seconds of steps that overlap once. What its
    devices were used for is told of other steps alone: here they work for several at a time.
    elastic workers: all that came; they are paid for from their admission on, until they are gone,
    and told apart is also why one did not generate (`elastic_worker_phases`).
    """
    window = Window(start_s=before_s or report.started_s, end_s=report.finished_s)
    prices = report.plan.run.prices
    own = own_devices(report.plan.run, prices.own_class, window)
    held = [*own, *elastic_worker_devices(elastic_workers, window)]
    figures = cost_figures(
        held_seconds(held, window), report.ledger.get(Fate.TRAINED, 0), window, prices
    )
    if report.plan.overlaps:
        return figures
    spans = [*report.spans, *elastic_worker_spans(elastic_workers, report, window)]
    return figures | use_figures(used_seconds(held, spans, window))


def own_devices(run: RunContext, price_class: str, window: Window) -> list[Held]:
    """The run holds each of its devices all the time, whatever works there."""
    return [
        Held(device=device, price_class=price_class, start_s=window.start_s, end_s=window.end_s)
        for device in _names(run)
    ]


def own_dollars_per_h(run: RunContext) -> float:
    """What an hour of all of these costs; 0 where nothing has a price."""
    prices = run.prices
    if not prices.are_set:
        return 0.0
    return HOUR_S * prices.dollars_per_s(prices.own_class) * len(_names(run))


def _names(run: RunContext) -> list[str]:
    return sorted({device for device in run.devices.values() if device != "host"})


def elastic_worker_devices(elastic_workers: Sequence[AdmittedWorker], window: Window) -> list[Held]:
    """What was lent to the run, each for as long as it was there."""
    return [
        Held(
            device=device,
            price_class=elastic_worker.price_class,
            start_s=elastic_worker.since_s,
            end_s=window.end_s if elastic_worker.until_s is None else elastic_worker.until_s,
            is_lent=True,
        )
        for elastic_worker in elastic_workers
        for device in shown_devices(elastic_worker.worker, elastic_worker.devices)
    ]
