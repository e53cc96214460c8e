"""Finds the number of elastic workers that trained most tokens per dollar, as a sentence. Pure.

RLBoost's N_prem (`seeding.workers_worth_holding`) leaves out prices and the longest response. This
module compares measured steps instead, by their number of workers, and interpolates nothing between
two numbers. A step counts only if its workers were the same from beginning to end, and all workers
are taken to cost the same. No worker is started or dismissed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from artifacts.prices import HOUR_S
from artifacts.records import NO_UPDATE

MEMORY = 0.7  # weight of earlier steps beside a new one: windows settle, responses get longer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCountSteps:
    """Sums over the steps with the same number of workers; later steps have a larger weight."""

    tokens: float  # trained
    seconds: float


Known = Mapping[int, WorkerCountSteps]  # by number of workers; 0 is the run alone


def with_step(known: Known, num_workers: int, step: WorkerCountSteps) -> Known:
    """Returns `known` with one more step, which had this number of workers throughout."""
    before = known.get(num_workers)
    if before is not None:
        step = WorkerCountSteps(
            tokens=MEMORY * before.tokens + step.tokens,
            seconds=MEMORY * before.seconds + step.seconds,
        )
    return {**known, num_workers: step}


def tokens_per_dollar(known: Known, own: float, worker: float) -> dict[int, float]:
    """Trained tokens per dollar, by number of workers. own, worker: dollars per hour of all devices
    that the run itself has, and of one worker with all its devices."""
    return {
        count: HOUR_S * steps.tokens / steps.seconds / (own + count * worker)
        for count, steps in sorted(known.items())
    }


def workers_to_hold(worth: Mapping[int, float]) -> int | None:
    """The number of workers that trains most tokens per dollar, the larger one if two are equal;
    None if no step is known. worth: tokens per dollar, by number of workers."""
    return max(worth, key=lambda count: (worth[count], count), default=None)


def worker_advice(steps: Sequence[Mapping[str, float]], own: float) -> str:
    """Sentence that names the number of elastic workers with most trained tokens per dollar; empty
    if nothing has a price, or if no step had elastic workers throughout. steps: figures of
    committed steps. own: dollars per hour of the run's own devices."""
    known: Known = {}
    worker = 0.0
    for before, step in pairwise(steps):
        came_or_went = step.get("elastic/joined", 0.0) + step.get("elastic/lost", 0.0)
        is_steady = before.get("elastic/present") == step.get("elastic/present", -1.0)
        if came_or_went or not is_steady or not step.get("cost/dollars"):
            continue
        count, seconds = int(step["elastic/present"]), step["cost/added_s"]
        tokens = step["ledger/trained_tokens"] + step.get(f"ledger/{NO_UPDATE}_tokens", 0.0)
        known = with_step(known, count, WorkerCountSteps(tokens=tokens, seconds=seconds))
        if count:
            worker = (HOUR_S * step["cost/dollars"] / seconds - own) / count
    worth = tokens_per_dollar(known, own, max(0.0, worker))
    best = workers_to_hold(worth)
    if best is None or not any(known):
        return ""
    others = ", ".join(f"{count}: {each:,.0f}" for count, each in worth.items() if count != best)
    advice = f"{best} elastic workers train most for a dollar: {worth[best]:,.0f} tokens"
    return f"{advice} ({others})" if others else advice
