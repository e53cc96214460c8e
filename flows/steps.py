"""The steps of a run, in order, from the last commit on. Where they overlap, a round begins when
the one before it closes, while that is trained:

    round s ──▶ closed ──▶ its turn: trained, published ──▶ committed, in order
                   └─▶ round s + 1 ──▶ closed ──▶ waits for its turn ...

When anything fails that can be recovered from, every round is ended, what was lost is replaced, and
the steps after the last commit begin again: rounds that were closed are read back. A barrier is a
step that is committed before a later round begins, and that leaves nothing running for one: the
last, or each where the steps of the run do not overlap at all.

An evaluation goes on beside the rounds and the training of later steps, on engines that all hold
the weights of the step that it follows. The next step updates nothing before it is over:

    step s committed ─▶ evaluation of its weights ─▶ told
                     └▶ step s + 1 trains ─────────────┴▶ updates, publishes
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from artifacts.records import WeightsRef
from flows.step_ordering import StepOrdering
from tasks.metrics.report import StepReport
from tasks.rounds.records import InFlight
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import RoundAborted
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

Played = tuple[StepReport, str | None]  # a step, and its checkpoint if one was due


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A step that may begin."""

    before: QueueState  # where the prompts stood when its round was planned
    plan: StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedStep(Planned):
    """A step that is under way."""

    place: StepOrdering
    playing: asyncio.Task[Played]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluating:
    """An evaluation that is under way."""

    plan: StepPlan
    asking: asyncio.Task[None]


class StepOps(Protocol):
    """What a run does with its steps."""

    max_recoveries: int  # in a row, without a commit in between
    recoverable: tuple[type[BaseException], ...]  # failures that are recovered from

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        """The round of a step over prompts that stand so, with these weights in all engines; None
        when the run is over."""
        ...

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        """Where the prompts stand after a round."""
        ...

    def is_barrier(self, step: int) -> bool:
        """Whether no later round begins before this step is committed."""
        ...

    def evaluation(self, step: int, weights: WeightsRef) -> StepPlan | None:
        """The evaluation of these weights, this step's, that goes on beside later steps; None if
        there is none."""
        ...

    async def evaluate(self, plan: StepPlan) -> None:
        """Ask the held-out prompts, and tell their scores."""
        ...

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        """Make room for the round of a step or of an evaluation, beside these."""
        ...

    async def play(self, plan: StepPlan, place: StepOrdering) -> Played:
        """All of the step that needs workers."""
        ...

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        """Make the step final; `state`: where the prompts stand after it."""
        ...

    async def abort(self, reason: str) -> None:
        """End every open round, for all who work on it."""
        ...

    async def recover(self, step: int, committed: WeightsRef) -> WeightsRef:
        """Replace what was lost, bring learners and engines back to this step, whose weights are
        the committed ones; the weights to go on with."""
        ...


class Steps:
    """The steps of a run from its last commit on."""

    def __init__(self, course: StepOps, state: QueueState, step: int, weights: WeightsRef) -> None:
        """state, step, weights: those of the last commit."""
        self.step = step
        self.weights = weights
        self._course = course
        self._state = state
        self._under_way: deque[StartedStep] = deque()
        self._attempts: Counter[int] = Counter()
        self._due: StepPlan | None = None  # the next attempt at an evaluation that is not over
        self._evaluating: Evaluating | None = None

    async def play(self) -> bool:
        """Play and commit steps up to the next barrier; whether there were any."""
        first, num_failures = self.step, Counter[int]()  # failures by the last step committed
        play_on = self._play_on
        while (failure := await self._failure(play_on())) is not None:
            num_failures[self.step] += 1
            attempt = num_failures[self.step]
            logger.warning("step=%d attempt=%d reason=%s", self.step + 1, attempt, failure)
            is_recoverable = isinstance(failure, self._course.recoverable)
            if not is_recoverable or attempt > self._course.max_recoveries:
                raise failure
            play_on = self._recover_and_play_on
        return self.step > first

    async def _failure(self, playing: Awaitable[None]) -> BaseException | None:
        """Wait for this; what made it fail, when all that was under way is ended."""
        try:
            await playing
        except BaseException as error:
            failure = await self._give_up(error)
            if failure is not error:
                failure.__cause__ = error
            return failure
        return None

    async def _recover_and_play_on(self) -> None:
        self.weights = await self._course.recover(self.step, self.weights)
        await self._play_on()

    async def _play_on(self) -> None:
        while True:
            await self._begin_evaluation()
            await self._begin()
            waits = self._waits()
            if not waits:
                return
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._end_evaluation()
            if self._under_way and self._under_way[-1].place.closed.done():
                self._under_way[-1].place.closed.result()  # raises why its round has failed
            if self._under_way and self._under_way[0].playing.done():
                await self._commit(self._under_way[0])
                if self._course.is_barrier(self.step):
                    return

    def _waits(self) -> set[asyncio.Future[Any]]:  # Any: of reports
        """What the next decision waits for; nothing when the run is over."""
        waits: set[asyncio.Future[Any]] = set()
        if self._under_way:
            waits.add(self._under_way[0].playing)
            closed = self._under_way[-1].place.closed
            waits |= set() if closed.done() else {closed}
        if self._evaluating is not None:
            waits.add(self._evaluating.asking)
        return waits

    async def _begin_evaluation(self) -> None:
        """Begin the evaluation that is due, unless it is under way."""
        if self._due is None or self._evaluating is not None:
            return
        plan = self._due
        self._due = replace(plan, attempt=plan.attempt + 1)
        await self._course.open(plan, [begun.plan for begun in self._under_way])
        asking = asyncio.create_task(self._course.evaluate(plan))
        self._evaluating = Evaluating(plan=plan, asking=asking)

    def _end_evaluation(self) -> None:
        if self._evaluating is not None and self._evaluating.asking.done():
            self._evaluating.asking.result()
            self._due = self._evaluating = None

    async def _begin(self) -> None:
        """Begin the next step, unless a round or a barrier is in its way, or the run is over."""
        state, step = self._state, self.step
        adopted: tuple[InFlight, ...] = ()
        if self._under_way:
            last = self._under_way[-1]
            if not last.place.closed.done() or self._course.is_barrier(last.plan.step):
                return
            rollout = last.place.closed.result()
            state, step = self._course.after(last.before, last.plan, rollout), last.plan.step
            adopted = rollout.in_flight
        planned = self._course.plan(state, step + 1, self.weights)
        if planned is None:
            return
        self._attempts[step + 1] += 1
        plan = replace(
            planned.plan,
            attempt=self._attempts[step + 1],
            adopted=adopted,
            leaves_running=planned.plan.overlaps and not self._course.is_barrier(step + 1),
        )
        beside = [begun.plan for begun in self._under_way]
        beside += [self._evaluating.plan] if self._evaluating is not None else []
        await self._course.open(plan, beside)
        place = StepOrdering()
        playing = asyncio.create_task(self._course.play(plan, place))
        begun = StartedStep(before=planned.before, plan=plan, place=place, playing=playing)
        self._under_way.append(begun)
        if len(self._under_way) == 1:
            self._give_turn(begun)

    async def _commit(self, done: StartedStep) -> None:
        report, checkpoint = done.playing.result()
        state = self._course.after(done.before, done.plan, report.rollout)
        await self._course.commit(report, state, checkpoint)
        self._under_way.popleft()
        self._state, self.step = state, done.plan.step
        self.weights = report.published.weights
        self._due = self._course.evaluation(self.step, self.weights)
        await self._begin_evaluation()
        if self._under_way:
            self._give_turn(self._under_way[0])

    def _give_turn(self, begun: StartedStep) -> None:
        """Its step may train; it replaces the weights that are being evaluated when that is
        over."""
        if self._evaluating is not None:
            begun.place.evaluation = self._evaluating.asking
        begun.place.turn.set_result(True)

    async def _give_up(self, error: BaseException) -> BaseException:
        """End what is under way; the failure that made the others fail."""
        under_way, self._under_way = self._under_way, deque()
        evaluating, self._evaluating = self._evaluating, None
        work: list[asyncio.Task[Any]] = [begun.playing for begun in under_way]  # Any: of reports
        work += [evaluating.asking] if evaluating is not None else []
        if not isinstance(error, Exception):  # the run is stopped: nobody waits for a step's end
            for task in work:
                task.cancel()
        elif not all(task.done() for task in work):
            await self._course.abort(f"a step failed: {type(error).__name__}: {error}")
        for begun in under_way:
            if not begun.place.turn.done():
                begun.place.turn.set_result(False)
        results = await asyncio.gather(*work, return_exceptions=True)
        failures = [error, *(result for result in results if isinstance(result, BaseException))]
        causes = [failure for failure in failures if not isinstance(failure, RoundAborted)]
        return (causes or failures)[0]
