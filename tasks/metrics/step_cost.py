"""The devices that a step held, their uses and their cost, from the report of the step. Pure.

The life of an elastic worker beside its rollouts:

    admitted ── build ──▶ first weights ── transfer, (rollout), transfer, ... ──▶ drain ──▶ gone
                                                           └── lost ──▶ known to be gone

An elastic worker that vanishes without notice counts as lost since its last sign of life: a renewed
lease, or the last tokens that were kept. Spans may overlap: `reports.device_cost` gives every
moment one use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from artifacts.prices import HOUR_S
from artifacts.records import Fate, Span
from artifacts.reports.device_cost import (
    Held,
    Window,
    cost_figures,
    held_seconds,
    use_figures,
    used_seconds,
)
from tasks.elastic.worker_events import AdmittedWorker
from tasks.metrics.report import StepReport
from tasks.run.run_context import RunContext


def elastic_worker_spans(
    elastic_workers: Iterable[AdmittedWorker], report: StepReport, window: Window
) -> list[Span]:
    """The phases of elastic workers beside their rollouts, until the window ends, as spans."""
    return [
        Span(device=device, actor=worker.name, kind=kind, start_s=start_s, end_s=end_s)
        for worker in elastic_workers
        for kind, start_s, end_s in _phases(worker, report, window.end_s)
        for device in worker.timeline_devices
    ]


def _phases(
    worker: AdmittedWorker, report: StepReport, now_s: float
) -> Iterator[tuple[str, float, float]]:
    """Kinds of spans of an elastic worker, with their beginnings and ends."""
    gone_s = now_s if worker.until_s is None else worker.until_s
    yield "build", worker.since_s, gone_s if worker.joined_s is None else worker.joined_s
    for start_s, end_s in worker.transfers:
        yield "transfer", start_s, end_s
    if worker.leaving_s is not None:
        yield "drain", worker.leaving_s, gone_s
    if worker.lost_s is not None:
        # when its last kept tokens came, or else its first weights
        kept_s = max(
            (span.end_s for span in report.rollout.spans if span.actor == worker.name),
            default=worker.since_s if worker.joined_s is None else worker.joined_s,
        )
        was_generating = worker.name in report.rollout.interrupted
        known_s = report.started_s if was_generating else worker.lost_s
        yield "lost", max(kept_s, known_s), gone_s


def cost_metrics(
    report: StepReport, before_s: float, elastic_workers: Sequence[AdmittedWorker] = ()
) -> dict[str, float]:
    """The cost metrics of a step.

    before_s: Unix seconds from which on the step pays: when the step before was over, or this
    attempt at the run began; 0 for its own beginning. elastic_workers: all that were admitted. The
    uses of devices are reported only for steps that do not overlap: otherwise a device works for
    several steps at a time.
    """
    window = Window(start_s=before_s or report.started_s, end_s=report.finished_s)
    prices = report.plan.run.prices
    start_s, end_s, own = window.start_s, window.end_s, prices.own_class
    held = [
        Held(device=device, price_class=own, start_s=start_s, end_s=end_s)
        for device in report.plan.run.own_devices
    ]
    held += elastic_worker_devices(elastic_workers, window)
    figures = cost_figures(
        held_seconds(held, window), report.ledger.get(Fate.TRAINED, 0), window, prices
    )
    if report.plan.overlaps:
        return figures
    spans = [*report.spans, *elastic_worker_spans(elastic_workers, report, window)]
    return figures | use_figures(used_seconds(held, spans, window))


def own_dollars_per_h(run: RunContext) -> float:
    """Price of one hour of the run's own devices, in dollars; 0 if no prices are set."""
    prices = run.prices
    if not prices.are_set:
        return 0.0
    return HOUR_S * prices.dollars_per_s(prices.own_class) * len(run.own_devices)


def elastic_worker_devices(elastic_workers: Sequence[AdmittedWorker], window: Window) -> list[Held]:
    """The devices of elastic workers, from admission until these are gone or the window ends."""
    return [
        Held(
            device=device,
            price_class=worker.price_class,
            start_s=worker.since_s,
            end_s=window.end_s if worker.until_s is None else worker.until_s,
            is_lent=True,
        )
        for worker in elastic_workers
        for device in worker.timeline_devices
    ]
