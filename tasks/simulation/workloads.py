"""The prompts of a simulated run, the lengths of its answers, and the seconds of their verdicts.

    Workload ──▶ domains(rows), prompt_tokens(id)          the data set
             ──▶ writer(step, seed).tokens(id, index, noise)   lengths of responses
             ──▶ feed(machine, seed)                           verdicts (`reward_queue`)

Everything is a function of names and seeds. The published workloads are a uniform mix of
mathematics, programs and questions for a judge (RollPacker, section 6.1): P75 of 755 to 1,100
tokens, the longest response 25 to 32 times the median, bounds of 8k, 16k and 32k tokens. Lengths
without a bound are not published: the tail (a slope of 1.3 above P75) and the correlation of a
prompt's responses (0.25) are calibrated on the rollout seconds of Figure 11 at 8k, mathematics with
a factor on prompts or on responses. Programs get the lengths of mathematics: then short rounds
shorten the longest response of 16k by up to 8.9 times, as in Figure 4a. That the judge's questions
have the lower P75, the medians of the domains and the prompts' lengths are our choice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

from artifacts.prompt_ids import row_of
from artifacts.records import CaseVerdict, Generated, Outcome, Score
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.writers import Lengths
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.simulation.draws import alike, normal, normal_score
from tasks.simulation.length_law import LengthLaw
from tasks.simulation.protocols import EVERY_TOKEN, GradientWork
from tasks.simulation.reward_queue import (
    AnswerToScore,
    JudgeTimes,
    ProgramTimes,
    RewardQueue,
    RewardTimes,
    RewardWorkers,
    RuleTimes,
    Work,
)

GOLDEN = (5**0.5 - 1) / 2  # its multiples fill an interval evenly
FIRST_TOKEN = 2  # of the question of the first row
LONGEST_PROMPT = 2048  # tokens; the published prompts' bound
PROMPT_SIGMA = 0.4  # of the logarithm of a prompt's length


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """The law by which answers are right: a share of them, correlated within a prompt."""

    share: float = 0.5  # of the answers that end by themselves
    prompt_share: float = 0.5  # correlation of two answers to a prompt, before they are counted

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """True if this answer is right."""
        shared = normal(seed, "easy prompt", prompt_id)
        own = normal(seed, "right", prompt_id, index)
        return alike(shared, own, self.prompt_share) < normal_score(self.share)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One kind of questions: share of the data set, lengths of answers, scoring times."""

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
        """Returns the cost of groups if no questions share tokens and every group is computed."""
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


class ScoredWork(Protocol):
    """What a reward stage needs of a workload: see the methods of `Workload`."""

    def prompt_tokens(self, prompt_id: str) -> int: ...

    def reward_of(self, prompt_id: str) -> RewardTimes: ...

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool: ...


class QueuedFeed:
    """A `ScoreFeed` whose verdicts wait in the queue of the run's reward workers."""

    def __init__(self, work: ScoredWork, workers: RewardWorkers, seed: int) -> None:
        self._work = work
        self._seed = seed
        self._queue = RewardQueue(workers, MeasuredTimes(), seed)
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._scores = Mailbox[Score]()
        self._attempt = 0  # of the round that published last

    async def publish(self, generated: Sequence[Generated]) -> None:
        for response in generated:
            if response.attempt != self._attempt:
                self._attempt = response.attempt
                self._give_up()
            self._offer(response)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)

    def _offer(self, response: Generated) -> None:
        names = (response.prompt_id, response.index)
        is_right = self._work.is_right(self._seed, *names)
        is_cut = response.finish_reason == "length"
        answer = AnswerToScore(
            prompt_id=response.prompt_id,
            index=response.index,
            num_tokens=self._work.prompt_tokens(response.prompt_id) + len(response.token_ids),
            is_right=is_right and not is_cut,
            is_cut=is_cut,
        )
        times = self._work.reward_of(response.prompt_id)
        self._start(self._queue.offer(answer, times, asyncio.get_running_loop().time()))

    def _start(self, works: Sequence[Work]) -> None:
        loop = asyncio.get_running_loop()
        for work in works:
            self._timers[work] = loop.call_at(work.ends_s, self._end, work)

    def _end(self, work: Work) -> None:
        del self._timers[work]
        for answer in work.answers:
            self._scores.put(_score(work, answer))
        self._start(self._queue.end(work, asyncio.get_running_loop().time()))

    def _give_up(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for answer in self._queue.give_up():
            score = Score(
                prompt_id=answer.prompt_id,
                index=answer.index,
                reward=None,
                outcome=Outcome.INFRA,
                detail="given up",
                scorer="simulated",
                started_s=now_s,
                finished_s=now_s,
            )
            self._scores.put(score)


def _score(work: Work, answer: AnswerToScore) -> Score:
    """TIMEOUT if a test case was killed, else OK or WRONG."""
    is_killed = any(case.verdict is CaseVerdict.TIMEOUT for case in work.cases)
    is_right = answer.is_right and not is_killed
    verdict = Outcome.OK if is_right else Outcome.WRONG
    return Score(
        prompt_id=answer.prompt_id,
        index=answer.index,
        reward=float(is_right),
        outcome=Outcome.TIMEOUT if is_killed else verdict,
        detail="simulated",
        scorer="simulated",
        started_s=work.begins_s,
        finished_s=work.ends_s,
        cases=work.cases,
    )


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
