"""What an elastic worker was held for when it did not generate: its life as spans on its devices.
Pure.

    admitted ── build ──▶ first weights ── transfer, (rollout), transfer, ... ──▶ drain ──▶ gone
                                                           └── lost ──▶ known to be gone

An elastic worker that is gone without a word is lost from the last that is known of it: that it
renewed its lease, or tokens that came. Where it was generating then, it is lost from the last
tokens that were kept; what it generated after them is generated elsewhere. Spans may overlap:
`reports.holding` gives every moment one use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from artifacts.records import Span
from artifacts.reports.device_cost import Window
from tasks.elastic.engine import shown_devices
from tasks.elastic.worker_events import AdmittedWorker
from tasks.metrics.report import StepReport


def elastic_worker_spans(
    elastic_workers: Iterable[AdmittedWorker], report: StepReport, window: Window
) -> list[Span]:
    """Of all of these, as far as the report of a step tells, until the end of its window."""
    return [
        Span(device=device, actor=elastic_worker.name, kind=kind, start_s=start_s, end_s=end_s)
        for elastic_worker in elastic_workers
        for kind, start_s, end_s in _phases(elastic_worker, report, window.end_s)
        for device in shown_devices(elastic_worker.worker, elastic_worker.devices)
    ]


def _phases(
    elastic_worker: AdmittedWorker, report: StepReport, now_s: float
) -> Iterator[tuple[str, float, float]]:
    """Kinds of spans, with their beginnings and ends."""
    gone_s = now_s if elastic_worker.until_s is None else elastic_worker.until_s
    yield (
        "build",
        elastic_worker.since_s,
        gone_s if elastic_worker.joined_s is None else elastic_worker.joined_s,
    )
    for start_s, end_s in elastic_worker.transfers:
        yield "transfer", start_s, end_s
    if elastic_worker.leaving_s is not None:
        yield "drain", elastic_worker.leaving_s, gone_s
    if elastic_worker.lost_s is not None:
        yield "lost", _last_known_s(elastic_worker, elastic_worker.lost_s, report), gone_s


def _last_known_s(elastic_worker: AdmittedWorker, heard_s: float, report: StepReport) -> float:
    """Until when it is known what a lost elastic worker did."""
    kept_s = _kept_until_s(elastic_worker, report.rollout.spans)
    if elastic_worker.name in report.rollout.interrupted:
        return max(kept_s, report.started_s)
    return max(kept_s, heard_s)


def _kept_until_s(elastic_worker: AdmittedWorker, spans: Sequence[Span]) -> float:
    """When the last tokens came that were kept, or else its first weights."""
    joined_s = (
        elastic_worker.since_s if elastic_worker.joined_s is None else elastic_worker.joined_s
    )
    return max(
        (span.end_s for span in spans if span.actor == elastic_worker.name), default=joined_s
    )
