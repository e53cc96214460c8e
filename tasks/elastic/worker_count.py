"""How many workers to hold at which price: the number that trains most tokens for a dollar.

    steps by number of workers: tokens, seconds ──┐
    dollars an hour: of the run itself, a worker ─┴─▶ tokens a dollar by number ─▶ the best number

    a step ─▶ memory of its number ─▶ number to try: a neighbour of the best one that nobody knows
                                      yet, else the best one

RLBoost's N_prem (`seeding.workers_worth_holding`) asks which number would generate a step while it
trains, whatever a worker costs and however long the last response takes. This asks what steps with
so many workers trained, and what they cost. Pure. Nothing is guessed between two numbers that are
known: were the seconds of a token to fall evenly there, one of the two would be the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY = 0.7  # weight of earlier steps beside a new one: windows settle, responses get longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Hourly:
    """Dollars an hour."""

    own: float  # of all devices that the run itself has
    worker: float  # of one worker, with all its devices

    def cost(self, num_workers: int) -> float:
        """Of the run with so many workers."""
        return self.own + num_workers * self.worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCountSteps:
    """What steps with the same number of workers came to, later ones counting more."""

    tokens: float
    seconds: float

    @property
    def tokens_per_h(self) -> float:
        return 3600 * self.tokens / self.seconds

    def and_then(self, step: WorkerCountSteps) -> WorkerCountSteps:
        """With a further step."""
        return WorkerCountSteps(
            tokens=MEMORY * self.tokens + step.tokens,
            seconds=MEMORY * self.seconds + step.seconds,
        )


Known = Mapping[int, WorkerCountSteps]  # by number of workers; 0 is the run alone


def with_step(known: Known, num_workers: int, step: WorkerCountSteps) -> Known:
    """With a step that had so many workers from its beginning to its end."""
    before = known.get(num_workers)
    return {**known, num_workers: step if before is None else before.and_then(step)}


def tokens_per_dollar(known: Known, hourly: Hourly) -> dict[int, float]:
    """Trained tokens by number of workers."""
    return {
        count: trained.tokens_per_h / hourly.cost(count) for count, trained in sorted(known.items())
    }


def workers_to_hold(known: Known, hourly: Hourly) -> int | None:
    """The number that trains most for a dollar, the larger of equal ones; None where nothing is
    known."""
    worth = tokens_per_dollar(known, hourly)
    return max(worth, key=lambda count: (worth[count], count), default=None)


def workers_to_try(known: Known, hourly: Hourly, offered: int) -> int | None:
    """The number for the next step: one more or one less than the best, as long as that is not
    known, else the best. Nobody is sent away to learn what the run is alone. offered: workers that
    there might be."""
    best = workers_to_hold(known, hourly)
    if best is None:
        return None
    neighbours = (min(best + 1, offered), max(best - 1, 1))
    return next((count for count in neighbours if count and count not in known), best)


def dearest_worker(known: Known, own: float, fewer: int, more: int) -> float:
    """Dollars an hour that a worker may cost at most for `more` of them to train as much for a
    dollar as `fewer`; infinite where they always do, 0 or less where they never do. own: dollars
    an hour of the run itself."""
    gain = known[more].tokens_per_h / known[fewer].tokens_per_h
    room = more - gain * fewer  # further workers that have to be paid for by the gain
    return own * (gain - 1) / room if room > 0 else math.inf
