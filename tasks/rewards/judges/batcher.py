"""Gives a round's questions to its judges in batches; no question is asked twice.

    score ── kept verdict? ── being asked already? ── budget spent? ── waiting
        ──▶ an idle judge takes its share ──▶ verdict

A judge works on one batch at a time. Questions that arrive meanwhile form the next batch. Idle
judges share the waiting questions, the judge with the fewest questions so far first. Waiting for a
judge occupies no reward worker. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from artifacts.judgements import Judgement, JudgementCache, JudgeQuestion
from artifacts.records import Generated, Outcome, Prompt, Score
from tasks.rewards.base import Verdict, stamp
from tasks.rewards.judges.engine_config import Judge
from tasks.rewards.judges.question import no_verdict
from tasks.rewards.judges.reward import (
    ANOTHER_NUMBER,
    JUDGE,
    TOO_LONG,
    JudgeConfig,
    exact_rule,
    question_of,
    verdict_of,
    verdict_unasked,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpan:
    """Time in which a judge worked on one batch."""

    judge: str  # the judge's name
    start_s: float  # Unix seconds
    end_s: float  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingReport:
    """Counts and times of a round's judging."""

    num_calls: int = 0  # questions that judges were asked
    num_batches: int = 0  # batches that the questions went in
    num_cache_hits: int = 0  # questions whose verdict was kept or already being asked for
    num_infra: int = 0  # responses without a verdict
    num_verdicts: int = 0  # responses with a judge's verdict
    num_yes: int = 0  # responses that a judge called right
    num_vetoed: int = 0  # responses wrong by the exact rule, without a judge
    num_too_long: int = 0  # responses whose final answer was too long to be judged
    num_compared: int = 0  # responses with a judge's verdict and one of the exact rule
    num_agreed: int = 0  # responses for which these two verdicts agree
    prompt_tokens: int = 0  # tokens that judges read
    new_tokens: int = 0  # tokens that judges wrote
    spans: tuple[JudgeSpan, ...] = ()  # when judges worked


class JudgeBatcher:
    """Scores a round's responses with its judges, by `score` inside an `async with` block."""

    def __init__(self, judges: Sequence[Judge], cache: JudgementCache, max_batch: int) -> None:
        self._judges = tuple(judges)
        self._cache = cache
        self._max_batch = max_batch
        self._served = {judge.name: 0 for judge in judges}
        self._batches: dict[str, asyncio.Task[None]] = {}
        self._waiting: deque[tuple[JudgeQuestion, float]] = deque()
        self._open: dict[str, asyncio.Future[Judgement]] = {}
        self._is_due = False
        self.report = JudgingReport()

    async def score(self, config: JudgeConfig, prompt: Prompt, generated: Generated) -> Score:
        """Score a response with a judge. Raises ActorLost or EngineLost if a judge is gone."""
        started_s = time.time()
        if generated.finish_reason == "aborted":
            verdict = Verdict(reward=None, outcome=Outcome.ABORTED, detail="aborted")
        elif (unasked := verdict_unasked(config, prompt, generated)) is not None:
            verdict = unasked
            self._add(
                num_too_long=int(verdict.detail == TOO_LONG),
                num_vetoed=int(verdict.detail == ANOTHER_NUMBER),
            )
        else:
            question = question_of(config, prompt, generated)
            verdict = verdict_of(config, await self._judgement(config, question))
            if verdict.outcome is Outcome.INFRA:
                self._add(num_infra=1)
            else:
                is_yes = verdict.outcome is Outcome.OK
                rule = exact_rule(prompt.gold, generated.text)
                self._add(
                    num_verdicts=1,
                    num_yes=int(is_yes),
                    num_compared=int(rule is not None),
                    num_agreed=int(rule == is_yes),
                )
        return stamp(verdict, prompt, generated, scorer=JUDGE, started_s=started_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Drop waiting questions, wait for running batches, and put the judges to sleep. If the
        block raised an error, cancel the batches instead."""
        self._waiting.clear()
        running = list(self._batches.values())
        if error is not None:
            for batch in running:
                batch.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for future in self._open.values():
            future.cancel()
        if error is None:
            served = [judge for judge in self._judges if self._served[judge.name]]
            await asyncio.gather(*(judge.sleep() for judge in served))

    async def _judgement(self, config: JudgeConfig, question: JudgeQuestion) -> Judgement:
        kept = self._cache.get(question.key)
        if kept is not None:
            self._add(num_cache_hits=1)
            return kept
        if question.key in self._open:
            self._add(num_cache_hits=1)
        elif self.report.num_calls + len(self._waiting) >= config.max_calls_per_round:
            return no_verdict(
                question, f"judge_budget_spent: max_calls_per_round is {config.max_calls_per_round}"
            )
        else:
            self._open[question.key] = asyncio.get_running_loop().create_future()
            self._waiting.append((question, config.deadline_s))
            if not self._is_due:  # once, after everything else that is ready now has asked, too
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._dispatch)
        return await asyncio.shield(self._open[question.key])

    def _dispatch(self) -> None:
        self._is_due = False
        while self._waiting and (
            idle := [judge for judge in self._judges if judge.name not in self._batches]
        ):
            judge = min(idle, key=lambda judge: self._served[judge.name])
            share = min(self._max_batch, math.ceil(len(self._waiting) / len(idle)))
            taken = [self._waiting.popleft() for _ in range(share)]
            self._served[judge.name] += share
            self._add(num_calls=share, num_batches=1)
            questions = [question for question, _ in taken]
            deadline_s = max(deadline_s for _, deadline_s in taken)
            self._batches[judge.name] = asyncio.create_task(
                self._run_batch(judge, questions, deadline_s)
            )

    async def _run_batch(
        self, judge: Judge, questions: Sequence[JudgeQuestion], deadline_s: float
    ) -> None:
        """Have a judge answer a batch. An error of the judge is raised in every `score` that waits
        for one of its verdicts; after the deadline the questions get no verdict."""
        start_s = time.time()
        try:
            async with asyncio.timeout(deadline_s):
                judged = await judge.decide(questions)
        except TimeoutError:
            detail = (
                f"judge_timeout: {judge.name} had {len(questions)} questions for {deadline_s:g} s"
            )
            judged = tuple(no_verdict(question, detail) for question in questions)
        # the boundary of the task: the callers that wait for these verdicts raise it
        except Exception as error:
            for question in questions:
                self._settle(question.key, error)
            return
        finally:
            del self._batches[judge.name]
            self._add(spans=(JudgeSpan(judge=judge.name, start_s=start_s, end_s=time.time()),))
        for judgement in judged:
            self._cache.add(judgement)
            self._add(prompt_tokens=judgement.prompt_tokens, new_tokens=judgement.new_tokens)
            self._settle(judgement.key, judgement)
        self._dispatch()

    def _settle(self, key: str, result: Judgement | Exception) -> None:
        waiting = self._open.pop(key)
        if isinstance(result, Exception):
            waiting.set_exception(result)
            waiting.exception()  # no warning if no caller waits any more
        else:
            waiting.set_result(result)

    def _add(self, *, spans: tuple[JudgeSpan, ...] = (), **counts: int) -> None:
        more = {name: getattr(self.report, name) + count for name, count in counts.items()}
        self.report = replace(self.report, spans=(*self.report.spans, *spans), **more)
