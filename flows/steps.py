"""The steps of a run, in order, from the last commit on. Where they overlap, a round begins when
the one before it closes, while that is trained:

    round s ──▶ closed ──▶ its turn: trained, published ──▶ committed, in order
                   └─▶ round s + 1 ──▶ closed ──▶ waits for its turn ...

When anything fails that can be recovered from, every round is ended, what was lost is replaced, and
the steps after the last commit begin again: rounds that were closed are read back. A barrier is a
step that is committed before a later round begins, and that leaves nothing running for one: an
evaluation follows it, or the steps of the run do not overlap at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from artifacts.records import WeightsRef
from flows.place import Place
from tasks.plan import StepPlan
from tasks.report import StepReport
from tasks.rounds.records import InFlight
from tasks.rounds.report import RolloutReport
from tasks.sample_buffer import RoundAborted
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

Played = tuple[StepReport, str | None]  # a step, and its checkpoint if one was due


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A step that may begin."""

    before: QueueState  # where the prompts stood when its round was planned
    plan: StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(Planned):
    """A step that is under way."""

    place: Place
    playing: asyncio.Task[Played]


class Course(Protocol):
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

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        """Make room for the round of a step, beside those of earlier ones."""
        ...

    async def play(self, plan: StepPlan, place: Place) -> Played:
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

    def __init__(self, course: Course, state: QueueState, step: int, weights: WeightsRef) -> None:
        """state, step, weights: those of the last commit."""
        self.step = step
        self.weights = weights
        self._course = course
        self._state = state
        self._under_way: deque[Begun] = deque()
        self._attempts: Counter[int] = Counter()

    async def play(self) -> bool:
        """Play and commit steps up to the next barrier; whether there were any."""
        num_failures, first = 0, self.step
        must_recover = False
        while True:
            committed = self.step
            try:
                if must_recover:
                    self.weights = await self._course.recover(self.step, self.weights)
                must_recover = False
                await self._play_on()
                return self.step > first
            except BaseException as error:
                cause = await self._give_up(error)
                num_failures = 1 + (num_failures if self.step == committed else 0)
                logger.warning("step=%d attempt=%d reason=%s", self.step + 1, num_failures, cause)
                is_recoverable = isinstance(cause, self._course.recoverable)
                must_recover = is_recoverable and num_failures <= self._course.max_recoveries
                if must_recover:
                    continue
                if cause is error:
                    raise
                raise cause from error

    async def _play_on(self) -> None:
        while True:
            await self._begin()
            if not self._under_way:
                return
            first, last = self._under_way[0], self._under_way[-1]
            waits: set[asyncio.Future[Any]] = {first.playing}  # Any: of reports
            if not last.place.closed.done():
                waits.add(last.place.closed)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if last.place.closed.done():
                last.place.closed.result()
            if first.playing.done():
                await self._commit(first)
                if self._course.is_barrier(self.step):
                    return

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
        await self._course.open(plan, [begun.plan for begun in self._under_way])
        place = Place()
        playing = asyncio.create_task(self._course.play(plan, place))
        begun = Begun(before=planned.before, plan=plan, place=place, playing=playing)
        self._under_way.append(begun)
        if len(self._under_way) == 1:
            place.turn.set_result(True)

    async def _commit(self, done: Begun) -> None:
        report, checkpoint = done.playing.result()
        state = self._course.after(done.before, done.plan, report.rollout)
        await self._course.commit(report, state, checkpoint)
        self._under_way.popleft()
        self._state, self.step = state, done.plan.step
        self.weights = report.published.weights
        if self._under_way:
            self._under_way[0].place.turn.set_result(True)

    async def _give_up(self, error: BaseException) -> BaseException:
        """End what is under way; the failure that made the others fail."""
        under_way, self._under_way = self._under_way, deque()
        if not isinstance(error, Exception):  # the run is stopped: nobody waits for a step's end
            for begun in under_way:
                begun.playing.cancel()
        elif not all(begun.playing.done() for begun in under_way):
            await self._course.abort(f"a step failed: {type(error).__name__}: {error}")
        for begun in under_way:
            if not begun.place.turn.done():
                begun.place.turn.set_result(False)
        playing = (begun.playing for begun in under_way)
        results = await asyncio.gather(*playing, return_exceptions=True)
        failures = [error, *(result for result in results if isinstance(result, BaseException))]
        causes = [failure for failure in failures if not isinstance(failure, RoundAborted)]
        return (causes or failures)[0]
