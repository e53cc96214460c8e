"""What a run's steps say of how many elastic workers to hold at their price, in a line. Pure.

    figures of the steps: elastic workers, tokens, seconds, dollars ─▶ `scheduling.hiring` ─▶ a
    sentence

A step counts whose elastic workers were the same from its beginning to its end. All elastic workers
are taken to cost the same. Nothing hires or dismisses elastic workers by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from artifacts.prices import HOUR_S
from artifacts.records import NO_UPDATE
from tasks.elastic.worker_count import (
    Hourly,
    Known,
    WorkerCountSteps,
    tokens_per_dollar,
    with_step,
    workers_to_hold,
)

Figures = Mapping[str, float]


def worker_advice(steps: Sequence[Figures], own: float) -> str:
    """The number of elastic workers with which steps trained most tokens for a dollar, beside the
    other numbers that there were; empty where nothing has a price or no step had an elastic worker
    for good.

    own: dollars an hour of the run's own devices.
    """
    known: Known = {}
    worker = 0.0
    for step in _steady(steps):
        count, seconds = int(step["elastic/present"]), step["cost/added_s"]
        tokens = step["ledger/trained_tokens"] + step.get(f"ledger/{NO_UPDATE}_tokens", 0.0)
        trained = WorkerCountSteps(tokens=tokens, seconds=seconds)
        known = with_step(known, count, trained)
        if count:
            worker = (HOUR_S * step["cost/dollars"] / seconds - own) / count
    best = workers_to_hold(known, hourly := Hourly(own=own, worker=max(0.0, worker)))
    if best is None or not any(known):
        return ""
    worth = tokens_per_dollar(known, hourly)
    others = ", ".join(f"{count}: {each:,.0f}" for count, each in worth.items() if count != best)
    told = f"{best} elastic workers train most for a dollar: {worth[best]:,.0f} tokens"
    return f"{told} ({others})" if others else told


def _steady(steps: Sequence[Figures]) -> Iterator[Figures]:
    """Those that were paid for, and with whose elastic workers the step before ended and nobody
    came or went."""
    for before, step in pairwise(steps):
        came_or_went = step.get("elastic/joined", 0.0) + step.get("elastic/lost", 0.0)
        alike = before.get("elastic/present") == step.get("elastic/present", -1.0)
        if alike and not came_or_went and step.get("cost/dollars"):
            yield step
