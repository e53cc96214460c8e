"""The simulated reward stage of a run: a ScoreFeed whose verdicts take their time, and wait for one
another, on the event loop's clock.

    publish ─▶ `reward_queue` ─▶ verdict ─▶ scored

Whether an answer is right is drawn by its name, alike within a prompt; one that the bound cut is
wrong. When a later round publishes, what is left of an earlier one is given up, and no worker goes
on with it, as in the real pool: it is told at once that there is no verdict. Whether responses are
published as they finish or all after the rollout is the driver's affair (`RoundPlan.scores_last`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from artifacts.records import CaseVerdict, Generated, Outcome, Score
from tasks.engines.mailbox import Mailbox
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.simulation.draws import alike, normal, normal_score
from tasks.simulation.reward_queue import RewardLoad, RewardQueue, RewardWorkers, Work
from tasks.simulation.reward_times import AnswerToScore, RewardTimes


class ScoredWork(Protocol):
    """What is scored."""

    def prompt_tokens(self, prompt_id: str) -> int:
        """The length of a prompt."""
        ...

    def reward_of(self, prompt_id: str) -> RewardTimes:
        """What scores its responses."""
        ...

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """Whether a response that ends by itself is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """How many answers are right."""

    share: float = 0.5  # of the answers that end by themselves
    prompt_share: float = 0.5  # correlation of two answers to a prompt, before they are counted

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """Whether this one is."""
        shared = normal(seed, "easy prompt", prompt_id)
        own = normal(seed, "right", prompt_id, index)
        return alike(shared, own, self.prompt_share) < normal_score(self.share)


class QueuedFeed:
    """Scores the responses of a run with the workers there are."""

    def __init__(self, work: ScoredWork, workers: RewardWorkers, seed: int) -> None:
        self._scored_work = work
        self._seed = seed
        self._queue = RewardQueue(workers, MeasuredTimes(), seed)
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._scores = Mailbox[Score]()
        self._attempt = 0  # of the round that published last

    @property
    def load(self) -> RewardLoad:
        """What its workers have done so far."""
        return self._queue.load

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
        is_right = self._scored_work.is_right(self._seed, *names)
        is_cut = response.finish_reason == "length"
        answer = AnswerToScore(
            prompt_id=response.prompt_id,
            index=response.index,
            num_tokens=(
                self._scored_work.prompt_tokens(response.prompt_id) + len(response.token_ids)
            ),
            is_right=is_right and not is_cut,
            is_cut=is_cut,
        )
        times = self._scored_work.reward_of(response.prompt_id)
        self._start(self._queue.offer(answer, times, asyncio.get_running_loop().time()))

    def _start(self, works: Sequence[Work]) -> None:
        loop = asyncio.get_running_loop()
        for work in works:
            self._timers[work] = loop.call_at(work.ends_s, self._end, work)

    def _end(self, work: Work) -> None:
        del self._timers[work]
        for answer in work.answers:
            self._scores.put(score_of(work, answer))
        self._start(self._queue.end(work, asyncio.get_running_loop().time()))

    def _give_up(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for answer in self._queue.give_up():
            self._scores.put(_given_up(answer, now_s))


def score_of(work: Work, answer: AnswerToScore) -> Score:
    """The verdict on an answer."""
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


def _given_up(answer: AnswerToScore, now_s: float) -> Score:
    return Score(
        prompt_id=answer.prompt_id,
        index=answer.index,
        reward=None,
        outcome=Outcome.INFRA,
        detail="given up",
        scorer="simulated",
        started_s=now_s,
        finished_s=now_s,
    )
