"""Who waits for which reward worker: verdicts that are queued, reached, and told.

    offer(answer, times) ─▶ its kind's backlog ─▶ a free worker ─▶ Work, until ends_s ─▶ end

Rules and programs share the reward workers by the rule of the real pool (`next_kind`); judges serve
their own queue, several answers in a pass. Pure: the time is passed in, and whoever holds a clock
calls `end` when a work's time has come (`reward_feed`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from artifacts.records import CaseResult
from tasks.rewards.pool import next_kind
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes, observed
from tasks.simulation.reward_times import AnswerToScore, JudgeTimes, ProgramTimes, RewardTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardWorkers:
    """What verdicts are reached with."""

    num_workers: int = 64  # processes for rules and programs
    num_judges: int = 1  # devices that a judge model lies on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """A worker that is busy, with one answer or a judge's batch."""

    kind: str
    times: RewardTimes
    answers: tuple[AnswerToScore, ...]
    cases: tuple[CaseResult, ...]  # of a program
    begins_s: float
    ends_s: float


@dataclass(slots=True)
class RewardLoad:
    """What a queue has done so far."""

    busy_s: dict[str, float] = field(default_factory=dict)  # of workers, by kind of times
    waited_s: float = 0.0  # of all answers, before they were begun
    num_begun: int = 0


class RewardQueue:
    """First come, first served within a kind."""

    def __init__(self, workers: RewardWorkers, book: MeasuredTimes, seed: int) -> None:
        """`book`: the run's, which outlives its steps."""
        self.load = RewardLoad()
        self._workers = workers
        self._book = book
        self._seed = seed
        self._times: dict[str, RewardTimes] = {}
        self._backlog: dict[str, deque[tuple[AnswerToScore, float]]] = {}
        self._running: Counter[str] = Counter()
        self._works: dict[Work, None] = {}  # that go on, in the order in which they began

    def offer(self, answer: AnswerToScore, times: RewardTimes, now_s: float) -> list[Work]:
        """One more answer; what begins with it."""
        kind = type(times).__name__
        assert self._times.setdefault(kind, times) == times, f"two sorts of {kind} in a run"
        self._backlog.setdefault(kind, deque()).append((answer, now_s))
        return list(self._begin(now_s))

    def end(self, work: Work, now_s: float) -> list[Work]:
        """A work is over, and its limits are learned; what begins instead."""
        self._running[work.kind] -= 1
        del self._works[work]
        if isinstance(work.times, ProgramTimes):
            self._book.learn(observed(work.times.timeout, [work.cases]))
        return list(self._begin(now_s))

    def give_up(self) -> tuple[AnswerToScore, ...]:
        """Nobody needs any of the verdicts that are not reached: their answers, in the order in
        which their verdicts would be waited for. Workers are free again."""
        running = (answer for work in self._works for answer in work.answers)
        waiting = (answer for backlog in self._backlog.values() for answer, _ in backlog)
        unneeded = (*running, *waiting)
        self._works.clear()
        self._running.clear()
        self._backlog.clear()
        return unneeded

    def _begin(self, now_s: float) -> Iterator[Work]:
        while (kind := self._free_kind()) is not None:
            work = self._work(kind, now_s)
            self._running[kind] += 1
            self._works[work] = None
            busy_s = self.load.busy_s.get(kind, 0.0)
            self.load.busy_s[kind] = busy_s + work.ends_s - now_s
            self.load.num_begun += len(work.answers)
            yield work

    def _free_kind(self) -> str | None:
        judged = [kind for kind, times in self._times.items() if isinstance(times, JudgeTimes)]
        for kind in judged:
            if self._backlog.get(kind) and self._running[kind] < self._workers.num_judges:
                return kind
        pooled = {kind: len(waiting) for kind, waiting in self._backlog.items()}
        pooled = {kind: count for kind, count in pooled.items() if kind not in judged}
        running = {kind: self._running[kind] for kind in pooled}
        return next_kind(pooled, running, self._workers.num_workers)

    def _work(self, kind: str, now_s: float) -> Work:
        times = self._times[kind]
        answers = self._take(kind, now_s)
        cases: tuple[CaseResult, ...] = ()
        if isinstance(times, ProgramTimes):
            cases = (times.case(answers[0], self._seed, self._book),)
            took_s = times.seconds(cases[0])
        elif isinstance(times, JudgeTimes):
            took_s = times.seconds(sum(map(times.tokens, answers)))
        else:
            took_s = times.seconds(answers[0], self._seed)
        return Work(
            kind=kind,
            times=times,
            answers=answers,
            cases=cases,
            begins_s=now_s,
            ends_s=now_s + took_s,
        )

    def _take(self, kind: str, now_s: float) -> tuple[AnswerToScore, ...]:
        """The first that waits, and for a judge those behind it that fit its pass."""
        times, waiting = self._times[kind], self._backlog[kind]
        taken = [waiting.popleft()]
        if isinstance(times, JudgeTimes):
            room = times.pass_tokens - times.tokens(taken[0][0])
            while waiting and times.tokens(waiting[0][0]) <= room:
                room -= times.tokens(waiting[0][0])
                taken.append(waiting.popleft())
        self.load.waited_s += sum(now_s - since_s for _, since_s in taken)
        return tuple(answer for answer, _ in taken)
