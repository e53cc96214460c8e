"""How fast steps can be that overlap, by the stage times of synchronous ones on the same two
devices. Pure.

Devices generate a step's responses in A device seconds, and wait up to L for the longest of them
and for its verdict. Two synchronous schedules tell both:

    both devices generate    A / 2 + L     "together"
    one of them generates    A + L         "apart"; the other one trains in l seconds

Then (ROLL-Flash's bounds, re-derived), with an async ratio of α:

    a device each     generation g = A + L / (α + 1), learning l,
                      a step (1 - o) g + max(o g, l) with o = min(α, 1), the share of a step's
                      groups that may be generated while the step before it trains
    both share both   A / 2 + L / (α + 1) + l of "together"

A run of S steps fills the pipeline once and empties it once: g + l, and S - 1 such steps. Left out:
orchestration, loading weights, and what a fuller batch gains in an engine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimes:
    """Mean seconds of a synchronous step."""

    generation_s: float  # rollout, and verdicts after it
    learning_s: float  # training, update and publication


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How far a run's steps may overlap, and on what."""

    async_ratio: float  # above 0
    is_shared: bool  # every device generates and trains; else one does the one, one the other


def overlapped_step_s(
    together: SyncTimes, apart: SyncTimes, overlap: Overlap, num_steps: int
) -> float:
    """Mean seconds of a step of a run of so many, at best."""
    work_s, longest_s = work_and_tail(together, apart)
    tail_s = longest_s / (overlap.async_ratio + 1)
    if overlap.is_shared:
        return work_s / 2 + tail_s + together.learning_s
    generation_s, learning_s = work_s + tail_s, apart.learning_s
    beside = min(overlap.async_ratio, 1.0)
    step_s = (1 - beside) * generation_s + max(beside * generation_s, learning_s)
    return (generation_s + learning_s + (num_steps - 1) * step_s) / num_steps


def work_and_tail(together: SyncTimes, apart: SyncTimes) -> tuple[float, float]:
    """A and L. Where one device is more than twice as slow as two, which is noise, all is work;
    where it is no slower, all is waiting."""
    work_s = 2 * (apart.generation_s - together.generation_s)
    work_s = min(max(work_s, 0.0), apart.generation_s)
    return work_s, apart.generation_s - work_s
