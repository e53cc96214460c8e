"""Reward stages of simulated runs: `ScoreFeed`s whose verdicts come on the event loop's clock.

    QueuedFeed     publish ─▶ `reward_queue` ─▶ verdict ─▶ scored: verdicts wait for one another
    RecordedFeed   publish ─▶ recorded seconds ─▶ scored: verdicts take as long as they once took
    RoundFeed      around either, for a whole run: each round gets the verdicts on its own responses

Whether responses are published as they finish or all after the rollout is the driver's decision
(`RoundPlan.scores_last`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from artifacts.records import CaseVerdict, Generated, Outcome, Score, response_id
from tasks.engines.mailbox import Mailbox
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.rounds.records import ScoreFeed
from tasks.simulation.draws import alike, normal, normal_score
from tasks.simulation.reward_queue import (
    AnswerToScore,
    RewardLoad,
    RewardQueue,
    RewardTimes,
    RewardWorkers,
    Work,
)


class ScoredWork(Protocol):
    """What a reward stage needs of a workload: prompt lengths, scoring times, correctness."""

    def prompt_tokens(self, prompt_id: str) -> int:
        """Returns the length of a prompt in tokens."""
        ...

    def reward_of(self, prompt_id: str) -> RewardTimes:
        """Returns the scoring times (of a rule, a program or a judge) of this prompt's
        responses."""
        ...

    def is_right(self, seed: int, prompt_id: str, index: int) -> bool:
        """True if this response is right, provided that no bound on tokens cuts it."""
        ...


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


class QueuedFeed:
    """A `ScoreFeed` whose verdicts wait in the queue of the run's reward workers."""

    def __init__(self, work: ScoredWork, workers: RewardWorkers, seed: int) -> None:
        self._scored_work = work
        self._seed = seed
        self._queue = RewardQueue(workers, MeasuredTimes(), seed)
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._scores = Mailbox[Score]()
        self._attempt = 0  # of the round that published last

    @property
    def load(self) -> RewardLoad:
        """Busy and waiting seconds of the reward workers so far."""
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
    """Returns the score of an answer: TIMEOUT if a test case was killed, else OK or WRONG."""
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


class ScoredRecord(Protocol):
    """Recorded rewards, and the seconds that scoring took."""

    def reward(self, seed: int, prompt_id: str, index: int, *, is_cut: bool) -> float:
        """Returns the reward of a response. is_cut: whether the bound on tokens ends the
        response."""
        ...

    def scored_s(self, prompt_id: str, index: int, seed: int) -> float:
        """Returns the seconds from a response's last token to its verdict."""
        ...


class RecordedFeed:
    """A `ScoreFeed` whose verdicts come after the recorded seconds, on the event loop's clock."""

    def __init__(self, record: ScoredRecord, seed: int) -> None:
        self._record = record
        self._seed = seed
        # when the verdict comes, by response and its end: what is asked anew ends at another time
        self._due_s: dict[tuple[str, float], float] = {}
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        loop = asyncio.get_running_loop()
        for response in generated:
            now_s, name = loop.time(), (response.response_id, response.finished_s)
            took_s = self._record.scored_s(response.prompt_id, response.index, self._seed)
            due_s = self._due_s.setdefault(name, now_s + took_s)
            score = self._score(response, now_s, max(now_s, due_s))
            loop.call_at(score.finished_s, self._scores.put, score)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)

    def _score(self, response: Generated, started_s: float, finished_s: float) -> Score:
        is_cut = response.finish_reason == "length"
        name = response.prompt_id, response.index
        reward = self._record.reward(self._seed, *name, is_cut=is_cut)
        return Score(
            prompt_id=response.prompt_id,
            index=response.index,
            reward=reward,
            outcome=Outcome.OK if reward > 0 else Outcome.WRONG,
            detail="simulated",
            scorer="simulated",
            started_s=started_s,
            finished_s=finished_s,
        )


class RoundFeed:
    """A `ScoreFeed` around that of a whole run: each round gets the verdicts on its own responses
    only. Verdicts on responses of one name come in the order in which the responses were published.
    """

    def __init__(self, feed: ScoreFeed) -> None:
        self._feed = feed
        self._awaited: Counter[str] = Counter()  # published by this round, verdict outstanding
        self._stale: Counter[str] = Counter()  # published by earlier rounds, verdict outstanding
        self._attempt = 0  # of this round, whoever asked for what it publishes

    def open_round(self) -> None:
        """Begin a round: from now on drop verdicts on responses that earlier rounds published."""
        self._stale.update(self._awaited)
        self._awaited.clear()
        self._attempt += 1

    async def publish(self, generated: Sequence[Generated]) -> None:
        self._awaited.update(response.response_id for response in generated)
        own = [replace(response, attempt=self._attempt) for response in generated]
        await self._feed.publish(own)

    async def scored(self, wait_s: float) -> list[Score]:
        clock = asyncio.get_running_loop().time
        until_s = clock() + wait_s
        while told := await self._feed.scored(until_s - clock()):
            if own := [score for score in told if self._is_own(score)]:
                return own
        return []

    def _is_own(self, score: Score) -> bool:
        name = response_id(score.prompt_id, score.index)
        if self._stale[name]:
            self._stale[name] -= 1
            return False
        self._awaited[name] -= 1
        return True
