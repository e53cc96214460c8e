"""What a guest was held for when it did not generate: its life as spans on its devices. Pure.

    admitted ── build ──▶ first weights ── transfer, (rollout), transfer, ... ──▶ drain ──▶ gone
                                                           └── lost ──▶ known to be gone

A guest that is gone without a word is lost from the last that is known of it: that it renewed its
lease, or tokens that came. Where it was generating then, it is lost from the last tokens that were
kept; what it generated after them is generated elsewhere. Spans may overlap: `reports.holding`
gives every moment one use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from artifacts.records import Span
from artifacts.reports.holding import Window
from tasks.elastic.engine import shown_devices
from tasks.elastic.worker_events import AdmittedWorker
from tasks.metrics.report import StepReport


def guest_spans(guests: Iterable[AdmittedWorker], report: StepReport, window: Window) -> list[Span]:
    """Of all of these, as far as the report of a step tells, until the end of its window."""
    return [
        Span(device=device, actor=guest.name, kind=kind, start_s=start_s, end_s=end_s)
        for guest in guests
        for kind, start_s, end_s in _phases(guest, report, window.end_s)
        for device in shown_devices(guest.worker, guest.devices)
    ]


def _phases(
    guest: AdmittedWorker, report: StepReport, now_s: float
) -> Iterator[tuple[str, float, float]]:
    """Kinds of spans, with their beginnings and ends."""
    gone_s = now_s if guest.until_s is None else guest.until_s
    yield "build", guest.since_s, gone_s if guest.joined_s is None else guest.joined_s
    for start_s, end_s in guest.transfers:
        yield "transfer", start_s, end_s
    if guest.leaving_s is not None:
        yield "drain", guest.leaving_s, gone_s
    if guest.lost_s is not None:
        yield "lost", _last_known_s(guest, guest.lost_s, report), gone_s


def _last_known_s(guest: AdmittedWorker, heard_s: float, report: StepReport) -> float:
    """Until when it is known what a lost guest did."""
    kept_s = _kept_until_s(guest, report.rollout.spans)
    if guest.name in report.rollout.interrupted:
        return max(kept_s, report.started_s)
    return max(kept_s, heard_s)


def _kept_until_s(guest: AdmittedWorker, spans: Sequence[Span]) -> float:
    """When the last tokens came that were kept, or else its first weights."""
    joined_s = guest.since_s if guest.joined_s is None else guest.joined_s
    return max((span.end_s for span in spans if span.actor == guest.name), default=joined_s)
