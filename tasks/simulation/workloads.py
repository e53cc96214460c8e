"""The prompts of a simulated run, the lengths of its answers, and the seconds of their verdicts.

    Workload ──▶ domains(rows), prompt_tokens(id)          the data set
             ──▶ writer(step, seed).tokens(id, index, noise)   lengths of responses
             ──▶ feed(machine, seed)                           verdicts (`reward_feed`)

Everything is a function of names and seeds. The published workloads are a uniform mix of
mathematics, programs and questions for a judge (RollPacker, section 6.1): P75 of 755 to 1,100
tokens, the longest response 25 to 32 times the median, bounds of 8k, 16k and 32k tokens. With
medians of 520 to 620 tokens that longest response is the bound of 16k itself, so the lengths
without a bound are not published. The tail (a slope of 1.3 above P75) and the correlation of a
prompt's responses (0.25) are calibrated on the rollout seconds of Figure 11 at 8k, mathematics with
a factor on prompts or on responses. Programs get the lengths of mathematics: then short rounds
shorten the longest response of 16k by up to 8.9 times, as in Figure 4a. Which domain has the lower
P75 is not published; here the judge's questions have it. The medians of the domains and the
prompts' lengths are our choice. The bound cuts the law and does not stretch it.
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
    """One kind of questions: its share of the data set, its answers' lengths and its scoring
    times."""

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
        """Returns the domain of every row of the data set, as `draw_prompts` takes them."""
        return tuple(self._part_of_row(row).name for row in range(num_rows))

    def part_of(self, prompt_id: str) -> Domain:
        """Returns the domain of a prompt."""
        return self._part_of_row(row_of(prompt_id))

    def prompt_tokens(self, prompt_id: str) -> int:
        """Returns the length of a prompt in tokens."""
        spread = math.exp(PROMPT_SIGMA * normal(0, "prompt", row_of(prompt_id)))
        return max(1, min(LONGEST_PROMPT, round(self.part_of(prompt_id).prompt_tokens * spread)))

    def question(self, prompt_id: str) -> tuple[int, ...]:
        return blank_question(prompt_id, self.prompt_tokens(prompt_id))

    def writer(self, step: int, seed: int) -> Lengths:
        """Returns the lengths of the responses of a step."""
        return DrawnLengths(self, {part.name: part.lengths for part in self.parts}, seed)

    def feed(self, machine: Any, seed: int) -> QueuedFeed:  # Any: its rewards have their own
        """Returns a feed that scores the run's responses with the workload's reward workers."""
        return QueuedFeed(self, self.workers, seed)

    def gradients(self, seed: int) -> GradientWork:
        """Returns the cost of groups if no two questions share tokens and every group is
        computed."""
        return EVERY_TOKEN

    def reward_of(self, prompt_id: str) -> RewardTimes:
        """Returns the scoring times of the responses to a prompt."""
        return self.part_of(prompt_id).reward

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """True if this response is right, provided that no bound on tokens cuts it."""
        return self.correctness.is_right(seed, prompt_id, index)

    def _part_of_row(self, row: int) -> Domain:
        place = (row + 1) * GOLDEN % 1.0
        bounds = accumulate(part.share for part in self.parts)
        return next(
            (part for part, bound in zip(self.parts, bounds, strict=True) if place < bound),
            self.parts[-1],
        )


class DrawnLengths:
    """Response lengths, each drawn by the name of its response (`Lengths`)."""

    def __init__(self, workload: Workload, laws: Mapping[str, LengthLaw], seed: int) -> None:
        self._workload = workload
        self._laws = laws
        self._seed = seed
        self._prompts: dict[str, tuple[LengthLaw, float]] = {}  # law and hardness of a prompt

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """Returns the length of a response in tokens, at most one more than the bound: such a
        response is cut."""
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
    """Returns the data set row in a prompt id, where it follows the epoch and a slash."""
    return int(prompt_id.rpartition("/")[2])


def blank_question(prompt_id: str, num_tokens: int) -> tuple[int, ...]:
    """Returns a question that encodes only its row, so that no two questions begin alike."""
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
    """Returns these domains with equal shares."""
    return tuple(replace(part, share=1 / len(parts)) for part in parts)


def without_tail(part: Domain) -> Domain:
    """Returns the domain with nearly equal response lengths, where no scheduler can gain."""
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
    """Returns a workload by name. Raises ValueError for an unknown name."""
    if name not in WORKLOADS:
        raise ValueError(f"workload must be one of {', '.join(WORKLOADS)}, got {name!r}")
    return WORKLOADS[name](longest_tokens)
