"""What a simulated run is asked, how long its answers get, and how long their verdicts take.

    Workload ──▶ domains(rows), prompt_tokens(id)          the data set
             ──▶ writer(step, seed).tokens(id, index, noise)   lengths of responses
             ──▶ feed(machine, seed)                           verdicts (`reward_feed`)

Everything is a function of names and seeds. The published workloads are a uniform mix of
mathematics, programs and questions for a judge (RollPacker, section 6.1), with P75 of 755 to 1,100
tokens, the longest 25 to 32 times the median, and bounds of 8k, 16k and 32k tokens. With medians of
520 to 620 tokens that longest is the bound of 16k itself, so how long responses would get without a
bound is not published. That tail (a slope of 1.3 above P75) and the likeness of a prompt's
responses (0.25) are calibrated on the rollout seconds of Figure 11 at 8k, mathematics with a factor
on prompts or on responses. Programs are as long as mathematics: then short rounds bring the longest
of 16k down by up to 8.9 times, as Figure 4a has it; which domain has the lower P75 is not
published, so that it is the third's. The medians of the domains and the prompts' lengths are our
choice. The bound cuts the law and does not stretch it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from tasks.engines.simulation.writers import Lengths
from tasks.simulation.draws import normal
from tasks.simulation.length_law import LengthLaw
from tasks.simulation.protocols import EVERY_TOKEN, GradientWork
from tasks.simulation.reward_feed import Correctness, QueuedFeed
from tasks.simulation.reward_queue import (
    JudgeTimes,
    ProgramTimes,
    RewardTimes,
    RewardWorkers,
    RuleTimes,
)

GOLDEN = (5**0.5 - 1) / 2  # its multiples fill an interval evenly
FIRST_TOKEN = 2  # of the question of the first row
LONGEST_PROMPT = 2048  # tokens; the published prompts' bound
PROMPT_SIGMA = 0.4  # of the logarithm of a prompt's length


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Questions of one kind."""

    name: str
    share: float  # of the data set's rows
    lengths: LengthLaw
    reward: RewardTimes
    prompt_tokens: float = 200.0  # median


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A data set, the lengths of a model's answers, and the stage that scores them (`RunWork`)."""

    name: str
    longest_tokens: int  # bound on a response
    parts: tuple[Domain, ...]  # their shares sum to 1
    workers: RewardWorkers = field(default_factory=RewardWorkers)
    correctness: Correctness = field(default_factory=Correctness)

    def __post_init__(self) -> None:
        total = sum(part.share for part in self.parts)
        if not math.isclose(total, 1.0):
            raise ValueError(f"the shares of a workload's domains must sum to 1, got {total:g}")

    def domains(self, num_rows: int) -> tuple[str, ...]:
        """The domain of every row of the data set, as `draw_prompts` takes them."""
        return tuple(self._part_of_row(row).name for row in range(num_rows))

    def part_of(self, prompt_id: str) -> Domain:
        """The domain of a prompt."""
        return self._part_of_row(row_of(prompt_id))

    def prompt_tokens(self, prompt_id: str) -> int:
        """The length of a prompt."""
        spread = math.exp(PROMPT_SIGMA * normal(0, "prompt", row_of(prompt_id)))
        return max(1, min(LONGEST_PROMPT, round(self.part_of(prompt_id).prompt_tokens * spread)))

    def question(self, prompt_id: str) -> tuple[int, ...]:
        return blank_question(prompt_id, self.prompt_tokens(prompt_id))

    def writer(self, step: int, seed: int) -> Lengths:
        """The lengths of the responses of a step."""
        return DrawnLengths(self, {part.name: part.lengths for part in self.parts}, seed)

    def feed(self, machine: Any, seed: int) -> QueuedFeed:  # Any: its rewards have their own
        """The reward stage of a run."""
        return QueuedFeed(self, self.workers, seed)

    def gradients(self, seed: int) -> GradientWork:
        """The cost of questions that have nothing in common, where every group is computed."""
        return EVERY_TOKEN

    def reward_of(self, prompt_id: str) -> RewardTimes:
        """The stage that scores the responses to a prompt."""
        return self.part_of(prompt_id).reward

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """True if a response that ends by itself is right."""
        return self.correctness.is_right(seed, prompt_id, index)

    def _part_of_row(self, row: int) -> Domain:
        place = (row + 1) * GOLDEN % 1.0
        bounds = accumulate(part.share for part in self.parts)
        return next(
            (part for part, bound in zip(self.parts, bounds, strict=True) if place < bound),
            self.parts[-1],
        )


class DrawnLengths:
    """The lengths of one step, each drawn by its response's name."""

    def __init__(self, workload: Workload, laws: Mapping[str, LengthLaw], seed: int) -> None:
        self._workload = workload
        self._laws = laws
        self._seed = seed
        self._prompts: dict[str, tuple[LengthLaw, float]] = {}  # law and hardness of a prompt

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """The length of a response, up to one token more than the bound, which cuts it."""
        law, hardness = self._prompt(prompt_id)
        length = law.tokens(law.score(hardness, self._seed, prompt_id, index, noise))
        return max(1, round(min(length, self._workload.longest_tokens + 1)))

    def _prompt(self, prompt_id: str) -> tuple[LengthLaw, float]:
        found = self._prompts.get(prompt_id)
        if found is None:
            law = self._laws[self._workload.part_of(prompt_id).name]
            found = law, normal(self._seed, "question", row_of(prompt_id))
            self._prompts[prompt_id] = found
        return found


def row_of(prompt_id: str) -> int:
    """The row of the data set in a prompt's id, which has the epoch before it."""
    return int(prompt_id.rpartition("/")[2])


def blank_question(prompt_id: str, num_tokens: int) -> tuple[int, ...]:
    """A question that holds only its row, so that no two begin alike."""
    return (FIRST_TOKEN + row_of(prompt_id), *(1,) * (num_tokens - 1))


MATH = Domain(
    name="math",
    share=1.0,
    lengths=LengthLaw(median_tokens=620, p75_tokens=1080, longest_ratio=47.0),
    reward=RuleTimes(),
)
CODE = Domain(
    name="code",
    share=1.0,
    lengths=MATH.lengths,
    reward=ProgramTimes(),
    prompt_tokens=300.0,
)
JUDGE = Domain(
    name="judge",
    share=1.0,
    lengths=LengthLaw(median_tokens=520, p75_tokens=780, longest_ratio=40.0),
    reward=JudgeTimes(),
)


def mixed(*parts: Domain) -> tuple[Domain, ...]:
    """Domains with equal shares."""
    return tuple(replace(part, share=1 / len(parts)) for part in parts)


def without_tail(part: Domain) -> Domain:
    """The domain with lengths that differ by little, where no scheduler can gain."""
    lengths = replace(
        part.lengths,
        p75_tokens=1.1 * part.lengths.median_tokens,
        longest_ratio=1.6,
        endless_share=0.0,
    )
    return replace(part, lengths=lengths)


def _of(name: str, parts: tuple[Domain, ...]) -> Callable[[int], Workload]:
    def made(longest_tokens: int) -> Workload:
        return Workload(name=name, longest_tokens=longest_tokens, parts=parts)

    return made


# by name; each takes the bound on a response
WORKLOADS: Mapping[str, Callable[[int], Workload]] = {
    "math": _of("math", (MATH,)),
    "code": _of("code", (CODE,)),
    "judge": _of("judge", (JUDGE,)),
    "mixed": _of("mixed", mixed(MATH, CODE, JUDGE)),
    "no_tail": _of("no_tail", mixed(*map(without_tail, (MATH, CODE, JUDGE)))),
}


def workload(name: str, longest_tokens: int) -> Workload:
    """A workload by name. ValueError for a name that there is not."""
    if name not in WORKLOADS:
        raise ValueError(f"workload must be one of {', '.join(WORKLOADS)}, got {name!r}")
    return WORKLOADS[name](longest_tokens)
