"""Plays the steps of a run in order, from the last commit on. If steps overlap, a round begins when
the round before it closes, while that earlier round is trained:

    round s ──▶ closed ──▶ its turn: trained, published ──▶ committed, in order
                   └─▶ round s + 1 ──▶ closed ──▶ waits for its turn ...

After a recoverable failure every round is ended, lost actors are replaced, and the steps after the
last commit begin again; rounds that were closed are read back. A barrier is a step that must be
committed before a later round begins. The last step is one; if steps do not overlap, every step is.

An evaluation goes on beside the rounds and the training of later steps, on engines that all hold
the weights of the evaluated step. The next step does not update before the evaluation is over:

    step s committed ─▶ evaluation of its weights ─▶ reported
                     └▶ step s + 1 trains ─────────────┴▶ updates, publishes"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from artifacts.records import WeightsRef
from flows.task_runner import result_of
from tasks.metrics.report import StepReport
from tasks.rounds.records import InFlight
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import RoundAborted
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

Played = tuple[StepReport, str | None]  # report of a step, and its checkpoint if one was due


class StepOrdering:
    """Signals between one step and the loop over all steps, within the flow's process. `closed`:
    the step's round has closed, and the next begins. `turn`: all earlier steps are committed, and
    the step trains. `evaluation`: when it is over, the step updates and publishes."""

    __slots__ = ("_closing", "closed", "evaluation", "held_s", "turn")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # the report of the step's round, or the error that ended the round
        self.closed: asyncio.Future[RolloutReport] = loop.create_future()
        self.turn: asyncio.Future[bool] = loop.create_future()  # True if the step may train
        # the evaluation of the weights that the step replaces; known when its turn comes
        self.evaluation: asyncio.Future[None] | None = None
        self.held_s = 0.0  # how long the step's update waited for the evaluation
        self._closing: asyncio.Task[None] | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as None: Prefect sends a flow's parameters to tasks, which do not use this."""
        return type(None), ()

    async def may_train(self, rollout: Any) -> bool:  # Any: a Prefect future of the round's report
        """Wait for the step's turn, and set `closed` meanwhile. False if it must not train."""
        self._closing = asyncio.create_task(self._close_after(rollout))
        await asyncio.wait((self._closing, self.turn), return_when=asyncio.FIRST_COMPLETED)
        if not self.turn.done() and self.closed.exception() is not None:
            return False
        return await self.turn

    async def may_update(self) -> None:
        """Wait for the evaluation of the weights that the step's update replaces. Raises
        RoundAborted if that evaluation failed: it must be repeated before the update."""
        if self.evaluation is None:
            return
        began_s = time.monotonic()
        await asyncio.wait((self.evaluation,))
        self.held_s = time.monotonic() - began_s
        if self.evaluation.cancelled() or self.evaluation.exception() is not None:
            raise RoundAborted("the evaluation of the weights before this step's failed")

    async def _close_after(self, rollout: Any) -> None:  # Any: as above
        try:
            report = await result_of(rollout)
        except BaseException as error:
            self.closed.set_exception(error)
            self.closed.exception()  # marks it as retrieved, or asyncio logs an unused exception
        else:
            self.closed.set_result(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan of a step that may begin, with the prompt queue before the step."""

    before: QueueState  # state of the prompt queue when the step's round was planned
    plan: StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedStep(Planned):
    """A step that is under way, with its signals and its asyncio task."""

    ordering: StepOrdering
    task: asyncio.Task[Played]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEvaluation:
    """An evaluation that is under way, with its asyncio task."""

    plan: StepPlan
    task: asyncio.Task[None]


class StepOps(Protocol):
    """Operations on the steps of a run that `Steps` puts in order: those of `StepController`."""

    max_recoveries: int  # in a row, without a commit in between
    recoverable: tuple[type[BaseException], ...]  # failures that are recovered from

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None: ...
    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState: ...
    def is_barrier(self, step: int) -> bool: ...
    def evaluation(self, step: int, weights: WeightsRef) -> StepPlan | None: ...
    async def evaluate(self, plan: StepPlan) -> None: ...
    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None: ...
    async def play(self, plan: StepPlan, ordering: StepOrdering) -> Played: ...
    async def commit(
        self, report: StepReport, state: QueueState, checkpoint: str | None
    ) -> None: ...
    async def abort(self, reason: str) -> None: ...
    async def recover(self, step: int, committed: WeightsRef) -> WeightsRef: ...


class Steps:
    """Plays the steps of a run from its last commit on."""

    def __init__(self, ops: StepOps, state: QueueState, step: int, weights: WeightsRef) -> None:
        """Begin after the last commit, which has the number `step`, the prompt queue `state` and
        the weights `weights`."""
        self.step = step
        self.weights = weights
        self._ops = ops
        self._state = state
        self._under_way: deque[StartedStep] = deque()
        self._attempts: Counter[int] = Counter()
        self._due: StepPlan | None = None  # the next attempt at an evaluation that is not over
        self._evaluating: StartedEvaluation | None = None

    async def play(self) -> bool:
        """Play and commit steps up to the next barrier; returns False when the run is over."""
        first, num_failures = self.step, Counter[int]()  # failures by the last step committed
        play_on = self._play_on
        while (failure := await self._failure(play_on())) is not None:
            num_failures[self.step] += 1
            attempt = num_failures[self.step]
            logger.warning("step=%d attempt=%d reason=%s", self.step + 1, attempt, failure)
            is_recoverable = isinstance(failure, self._ops.recoverable)
            if not is_recoverable or attempt > self._ops.max_recoveries:
                raise failure
            play_on = self._recover_and_play_on
        return self.step > first

    async def _failure(self, playing: Awaitable[None]) -> BaseException | None:
        """Await the steps; if they fail, end all that is under way and return the cause."""
        try:
            await playing
        except BaseException as error:
            failure = await self._give_up(error)
            if failure is not error:
                failure.__cause__ = error
            return failure
        return None

    async def _recover_and_play_on(self) -> None:
        self.weights = await self._ops.recover(self.step, self.weights)
        await self._play_on()

    async def _play_on(self) -> None:
        while True:
            await self._begin_evaluation()
            await self._begin()
            waits = self._waits()
            if not waits:
                return
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._evaluating is not None and self._evaluating.task.done():
                self._evaluating.task.result()
                self._due = self._evaluating = None
            if self._under_way and self._under_way[-1].ordering.closed.done():
                self._under_way[-1].ordering.closed.result()  # raises why its round has failed
            if self._under_way and self._under_way[0].task.done():
                await self._commit(self._under_way[0])
                if self._ops.is_barrier(self.step):
                    return

    def _waits(self) -> set[asyncio.Future[Any]]:  # Any: of reports
        waits: set[asyncio.Future[Any]] = set()
        if self._under_way:
            waits.add(self._under_way[0].task)
            closed = self._under_way[-1].ordering.closed
            waits |= set() if closed.done() else {closed}
        if self._evaluating is not None:
            waits.add(self._evaluating.task)
        return waits

    async def _begin_evaluation(self) -> None:
        if self._due is None or self._evaluating is not None:
            return
        plan = self._due
        self._due = replace(plan, attempt=plan.attempt + 1)
        await self._ops.open(plan, [begun.plan for begun in self._under_way])
        task = asyncio.create_task(self._ops.evaluate(plan))
        self._evaluating = StartedEvaluation(plan=plan, task=task)

    async def _begin(self) -> None:
        """Begin the next step if the last round is closed and no barrier stands before it."""
        state, step = self._state, self.step
        adopted: tuple[InFlight, ...] = ()
        if self._under_way:
            last = self._under_way[-1]
            if not last.ordering.closed.done() or self._ops.is_barrier(last.plan.step):
                return
            rollout = last.ordering.closed.result()
            state, step = self._ops.after(last.before, last.plan, rollout), last.plan.step
            adopted = rollout.in_flight
        planned = self._ops.plan(state, step + 1, self.weights)
        if planned is None:
            return
        self._attempts[step + 1] += 1
        plan = replace(
            planned.plan,
            attempt=self._attempts[step + 1],
            adopted=adopted,
            leaves_running=planned.plan.overlaps and not self._ops.is_barrier(step + 1),
        )
        beside = [begun.plan for begun in self._under_way]
        beside += [self._evaluating.plan] if self._evaluating is not None else []
        await self._ops.open(plan, beside)
        ordering = StepOrdering()
        task = asyncio.create_task(self._ops.play(plan, ordering))
        begun = StartedStep(before=planned.before, plan=plan, ordering=ordering, task=task)
        self._under_way.append(begun)
        if len(self._under_way) == 1:
            self._give_turn(begun)

    async def _commit(self, done: StartedStep) -> None:
        report, checkpoint = done.task.result()
        state = self._ops.after(done.before, done.plan, report.rollout)
        await self._ops.commit(report, state, checkpoint)
        self._under_way.popleft()
        self._state, self.step = state, done.plan.step
        self.weights = report.published.weights
        self._due = self._ops.evaluation(self.step, self.weights)
        await self._begin_evaluation()
        if self._under_way:
            self._give_turn(self._under_way[0])

    def _give_turn(self, begun: StartedStep) -> None:
        if self._evaluating is not None:
            begun.ordering.evaluation = self._evaluating.task
        begun.ordering.turn.set_result(True)

    async def _give_up(self, error: BaseException) -> BaseException:
        """End all that is under way; returns the failure that caused the others."""
        under_way, self._under_way = self._under_way, deque()
        evaluating, self._evaluating = self._evaluating, None
        work: list[asyncio.Task[Any]] = [begun.task for begun in under_way]  # Any: of reports
        work += [evaluating.task] if evaluating is not None else []
        if not isinstance(error, Exception):  # the run is stopped: no step is waited for
            for task in work:
                task.cancel()
        elif not all(task.done() for task in work):
            await self._ops.abort(f"a step failed: {type(error).__name__}: {error}")
        for begun in under_way:
            if not begun.ordering.turn.done():
                begun.ordering.turn.set_result(False)
        results = await asyncio.gather(*work, return_exceptions=True)
        failures = [error, *(result for result in results if isinstance(result, BaseException))]
        causes = [failure for failure in failures if not isinstance(failure, RoundAborted)]
        return (causes or failures)[0]
