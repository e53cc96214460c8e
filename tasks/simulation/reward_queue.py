"""How long verdicts take, and how they wait for reward workers.

    rule      milliseconds, at most 2 s (the paper's limit for mathematics)
    program   log-normal, alike within a question, and a share that never ends: killed at the limit
              that the run's `MeasuredTimes` has for its question
    judge     one forward pass over the prompt and the answer, by the device's arithmetic or by the
              copying of its layers, whichever is longer (`JudgeTimes`)

    offer(answer, times) ─▶ its kind's backlog ─▶ a free worker ─▶ Work, until ends_s ─▶ end

Rules and programs share the reward workers by the rule of the real pool (`next_kind`); judges serve
their own queue, several answers in a pass. Pure: the time is passed in, and the caller, who holds a
clock, calls `end` when a work's time has come (`QueuedFeed`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from artifacts.records import CaseResult, CaseVerdict
from tasks.rewards.judges.engine_config import LayerStreaming, resident_layers
from tasks.rewards.pool import next_kind
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig, MeasuredTimes, observed
from tasks.simulation.draws import alike, normal, uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToScore:
    """An answer that waits for a verdict."""

    prompt_id: str
    index: int
    num_tokens: int  # of the prompt and the response
    is_right: bool  # whether the verdict will be that, if there is time
    is_cut: bool = False  # whether the bound on tokens ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTimes:
    """Scoring times of a rule that reads the answer: 12 ms on average (veRL, pull request 1206:
    16,384 answers one after the other in 200 s)."""

    median_s: float = 0.0074
    sigma: float = 1.0  # of the logarithm
    limit_s: float = 2.0  # the longest that it may take

    def seconds(self, answer: AnswerToScore, seed: int) -> float:
        """Returns the seconds until the verdict on this answer."""
        spread = self.sigma * normal(seed, "rule", answer.prompt_id, answer.index)
        return min(self.limit_s, self.median_s * math.exp(spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTimes:
    """Scoring times of a program that is run against a question's tests, one after the other.

    With the defaults 95 % of the programs end within 30 s and the others run into that limit
    (RollPacker, Figure 7a). The test cases of a question are assumed to take equally long, so that
    one of them stands for all. A response that the bound on tokens cut is no whole program and
    fails at once.
    """

    median_s: float = 1.5  # of a program that passes all cases
    sigma: float = 1.0  # of the logarithm
    question_share: float = 0.8  # correlation of that logarithm in two programs for a question
    doomed_share: float = 0.05  # of the programs that never end
    num_cases: int = 8
    timeout: AdaptiveTimeoutConfig = field(default_factory=AdaptiveTimeoutConfig)

    def case(self, answer: AnswerToScore, seed: int, book: MeasuredTimes) -> CaseResult:
        """Returns the result of the deciding test case, under the limit of the measured times."""
        key = f"{answer.prompt_id}/case"
        (limit,) = book.limits(self.timeout, (key,))
        needs_s = self._needs_s(answer, seed) / self.num_cases
        if needs_s > limit:
            verdict = CaseVerdict.TIMEOUT
        else:
            verdict = CaseVerdict.PASS if answer.is_right else CaseVerdict.WRONG
        return CaseResult(key=key, verdict=verdict, wall_s=min(needs_s, limit), limit_s=limit)

    def seconds(self, case: CaseResult) -> float:
        """Returns the seconds until the verdict: those of all cases, or of the first case alone if
        it is killed. `CaseRunner` goes on after a wrong case, but not after a killed one."""
        return case.wall_s * (1 if case.verdict is CaseVerdict.TIMEOUT else self.num_cases)

    def _needs_s(self, answer: AnswerToScore, seed: int) -> float:
        names = (answer.prompt_id, answer.index)
        if answer.is_cut:
            return 0.0
        if uniform(seed, "doomed", *names) < self.doomed_share:
            return math.inf
        score = alike(
            normal(seed, "slow question", answer.prompt_id),
            normal(seed, "slow program", *names),
            self.question_share,
        )
        return self.median_s * math.exp(self.sigma * score)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTimes:
    """Scoring times of a judge that reads prompt and answer and samples one token: it only
    prefills.

    `resident`: all layers lie on its device. `pipelined`: as many layers as the arithmetic hides
    are copied from host memory while others compute (RollPacker 4.3; the number is that of the
    real `resident_layers`). `copied`: every layer is copied, then computed, as offloading without
    a pipeline does.
    """

    placement: Literal["resident", "pipelined", "copied"] = "resident"
    parameters: float = 7.6e9  # of Qwen2.5-7B-Instruct, in bf16
    num_layers: int = 28
    frame_tokens: int = 300  # instructions around prompt and answer
    pass_tokens: int = 16384  # waiting answers share a pass up to so many
    streaming: LayerStreaming = field(default_factory=LayerStreaming)
    compute_share: float = 1.0  # of the device's arithmetic that it gets beside a rollout

    def tokens(self, answer: AnswerToScore) -> int:
        """Returns the tokens that the judge reads for an answer."""
        return answer.num_tokens + self.frame_tokens

    def seconds(self, num_tokens: int) -> float:
        """Returns the seconds of a forward pass over num_tokens."""
        tflops = self.compute_share * self.streaming.compute_tflops
        compute_s = 2 * self.parameters * num_tokens / (tflops * 1e12)
        copy_s = 2 * self.parameters / (self.streaming.link_gb_per_s * 1e9)
        if self.placement == "resident":
            return compute_s
        if self.placement == "copied":
            return compute_s + copy_s
        streaming = self.streaming.model_copy(update={"compute_tflops": tflops})
        num_copied = self.num_layers - resident_layers(self.num_layers, num_tokens, streaming)
        return max(compute_s, copy_s * num_copied / self.num_layers)


RewardTimes = RuleTimes | ProgramTimes | JudgeTimes
RULE = RuleTimes.__name__  # its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardWorkers:
    """The workers and devices that reach verdicts."""

    num_workers: int = 64  # processes for rules and programs
    scores_rules_serially: bool = False  # one after the other, in the process that drives the steps
    num_judges: int = 1  # devices that a judge model lies on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """The work of a busy worker: one answer, or a judge's batch of answers."""

    kind: str
    times: RewardTimes
    answers: tuple[AnswerToScore, ...]
    cases: tuple[CaseResult, ...]  # of a program
    begins_s: float
    ends_s: float


class RewardQueue:
    """Answers that wait for reward workers; first come, first served within a kind."""

    def __init__(self, workers: RewardWorkers, book: MeasuredTimes, seed: int) -> None:
        """book: the measured times of the whole run, which outlive its steps."""
        self._workers = workers
        self._book = book
        self._seed = seed
        self._times: dict[str, RewardTimes] = {}
        self._backlog: dict[str, deque[AnswerToScore]] = {}
        self._running: Counter[str] = Counter()
        self._works: dict[Work, None] = {}  # that go on, in the order in which they began

    def offer(self, answer: AnswerToScore, times: RewardTimes, now_s: float) -> list[Work]:
        """Queue an answer; returns the works that begin now."""
        kind = type(times).__name__
        assert self._times.setdefault(kind, times) == times, f"two sorts of {kind} in a run"
        self._backlog.setdefault(kind, deque()).append(answer)
        return list(self._begin(now_s))

    def end(self, work: Work, now_s: float) -> list[Work]:
        """Finish a work, record its measured times, and return the works that begin now."""
        self._running[work.kind] -= 1
        del self._works[work]
        if isinstance(work.times, ProgramTimes):
            self._book.learn(observed(work.times.timeout, [work.cases]))
        return list(self._begin(now_s))

    def give_up(self) -> tuple[AnswerToScore, ...]:
        """Drop all answers that have no verdict, and free the workers. Returns these answers: those
        in work first, then the waiting ones."""
        running = (answer for work in self._works for answer in work.answers)
        waiting = (answer for backlog in self._backlog.values() for answer in backlog)
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
            yield work

    def _free_kind(self) -> str | None:
        judged = [kind for kind, times in self._times.items() if isinstance(times, JudgeTimes)]
        for kind in judged:
            if self._backlog.get(kind) and self._running[kind] < self._workers.num_judges:
                return kind
        pooled = {kind: len(waiting) for kind, waiting in self._backlog.items()}
        pooled = {kind: count for kind, count in pooled.items() if kind not in judged}
        if self._workers.scores_rules_serially and self._running[RULE]:
            pooled.pop(RULE, None)
        running = {kind: self._running[kind] for kind in pooled}
        return next_kind(pooled, running, self._workers.num_workers)

    def _work(self, kind: str, now_s: float) -> Work:
        times = self._times[kind]
        answers = self._take(kind)
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

    def _take(self, kind: str) -> tuple[AnswerToScore, ...]:
        """Take the first waiting answer, and for a judge the next ones that fit into its pass."""
        times, waiting = self._times[kind], self._backlog[kind]
        taken = [waiting.popleft()]
        if isinstance(times, JudgeTimes):
            room = times.pass_tokens - times.tokens(taken[0])
            while waiting and times.tokens(waiting[0]) <= room:
                room -= times.tokens(waiting[0])
                taken.append(waiting.popleft())
        return tuple(taken)
