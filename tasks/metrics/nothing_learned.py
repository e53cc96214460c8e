"""What tells of a run in which nothing is learned: steps in a row whose rewards, or whose groups,
say nothing. Pure.

    figures of the steps so far ─▶ why a step is flat ─▶ several in a row ─▶ NothingLearned

It tells, and stops nothing: at the end of learning flat steps are what is to be expected. Steps
without a finite gradient, and those in which a critic learns first, are told elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.learner.reports import Skipped, skipped_of

LOWEST, HIGHEST, VERDICTS = "reward/min", "reward/max", "reward/verdicts"
CUT = "reward/truncated_fraction"
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLearned:
    """Flat steps in a row."""

    step: int  # the last of them
    num_steps: int  # how many they are
    what: str  # what is flat in the last one
    cure: str  # what to look at

    def __str__(self) -> str:
        row = f"{self.num_steps} steps in a row, up to step {self.step}"
        return f"{self.what} in {row}: {self.cure}"


def nothing_learned(
    steps: Sequence[tuple[int, Figures]], steps_in_a_row: int
) -> Iterator[NothingLearned]:
    """Every row of flat steps, given a run's steps with their figures. A row is told once, when it
    has so many."""
    num_flat = 0
    for step, figures in steps:
        found = _flat(figures)
        num_flat = num_flat + 1 if found else 0
        if found and num_flat == steps_in_a_row:
            what, cure = found
            yield NothingLearned(step=step, num_steps=num_flat, what=what, cure=cure)


def _flat(figures: Figures) -> tuple[str, str] | None:
    """What is flat in a step, and what to look at; None for one that may teach something."""
    if VERDICTS not in figures:  # of an earlier version
        return None
    if not figures[VERDICTS]:
        return _without_verdicts(figures)
    if figures[LOWEST] == figures[HIGHEST]:
        return _same_reward(figures)
    if skipped_of(figures) not in (Skipped.FLAT, Skipped.EMPTY):
        return None
    if figures.get("train/flat_group_fraction") == 1.0:
        return (
            "the answers to each question got the same reward",
            "they have nothing to be compared with; ask questions that are neither too easy nor"
            " too hard, or raise responses_per_prompt",
        )
    if figures.get("train/masked_responses"):
        return (
            "every answer with an advantage was cut at its bound and left out",
            "raise sampling.max_response_tokens, or see learner.overlong",
        )
    return (
        "rewards differed and no token kept a gradient",
        "see train/gated_fraction and train/clip_fraction, and learner.sequence_mask and"
        " learner.loss",
    )


def _without_verdicts(figures: Figures) -> tuple[str, str]:
    if figures.get("round/filtered_prompts"):
        return (
            "every group was filtered, because its answers got the same reward",
            "is the reward right? else ask questions that are neither too easy nor too hard",
        )
    return "no answer had a verdict", "see reward/infra, and the first failure in the log"


def _same_reward(figures: Figures) -> tuple[str, str]:
    reward = figures[LOWEST]
    if figures.get(CUT) == 1.0:
        return (
            f"every answer got {reward:g} and was cut at its bound",
            "raise sampling.max_response_tokens, or ask what is answered in fewer tokens",
        )
    if reward > 0:
        return (
            f"every answer got {reward:g}",
            "nothing is left to learn from such questions, or the reward tells no answers apart",
        )
    return f"every answer got {reward:g}", "is the reward right?"
