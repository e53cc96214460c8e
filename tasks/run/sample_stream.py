"""Access to the sample buffer for a round's coordinators, threads of the worker `control`, with a
deadline for every wait. Other processes call the buffer's actor (`tasks.cluster.actors`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from artifacts.records import Generated, Score
from tasks.cluster.actors import ActorLost
from tasks.rewards.pool import close_pools
from tasks.rounds.elastic_engines import WorkerNotice
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import (
    ELASTIC_WORKERS,
    GENERATED,
    GROUPED,
    PUBLISHED,
    SCORED,
    Record,
    RoundAborted,
    RoundKey,
    SampleBuffer,
    Stage,
)

Result = TypeVar("Result")
BUFFER = "sample-buffer"  # name of the sample buffer's actor
TAKE_WAIT_S = 5.0  # longest single wait; an abort ends it at once
PUT_WAIT_S = 120.0  # back-pressure may hold a producer this long
ANSWER_S = 60.0  # beyond the wait of a call, until the buffer's loop counts as lost
ABORT_S = 30.0  # longest wait of a coordinator that ends until the others are aborted
ATTEMPTS = 1000  # rounds of one step in the buffer
CAPACITIES: Mapping[Stage[Any], int] = {
    GENERATED: 4096, SCORED: 4096, GROUPED: 1024, PUBLISHED: 64, ELASTIC_WORKERS: 64
}  # fmt: skip


class BufferActor(SampleBuffer):
    """The sample buffer as an actor of the control worker, whose coordinators use it directly."""

    def __init__(self, capacities: Mapping[Stage[Any], int], run_id: str) -> None:
        super().__init__(capacities)
        self._run_id = run_id

    async def ping(self) -> None:
        """Return at once: the answer shows that the worker lives."""

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> dict[str, int]:
        """See `SampleBuffer.open_round`. From then on `SampleStream.connect` finds this buffer."""
        _here[self._run_id] = LocalBuffer(self, asyncio.get_running_loop())
        return await super().open_round(key, beside)

    async def close(self) -> None:
        """End the reward processes of this buffer's worker; `connect` finds the buffer no more."""
        _here.pop(self._run_id, None)
        await asyncio.to_thread(close_pools)


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """The sample buffer of this process, for all threads; no consumer changes a record."""

    buffer: SampleBuffer
    loop: asyncio.AbstractEventLoop  # the one that the buffer's methods run on

    async def call(self, work: Coroutine[Any, Any, Result], deadline_s: float) -> Result:
        """Await a coroutine on the buffer's event loop; ActorLost if that misses the deadline."""
        limit = asyncio.timeout(deadline_s)
        try:
            async with limit:
                if self.loop is asyncio.get_running_loop():
                    return await work
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))
        except TimeoutError as error:
            if not limit.expired():  # the buffer's own, which says what it waited for
                raise
            raise ActorLost(f"{BUFFER} did not answer within {deadline_s:.0f} s") from error


_here: dict[str, LocalBuffer] = {}  # the buffers of this process, by run id


class SampleStream:
    """One round's access to the sample buffer: `ScoreFeed` and `Publications` of the driver,
    `Delivery` of the reward stage."""

    def __init__(self, here: LocalBuffer, key: RoundKey) -> None:
        self._here, self._buffer = here, here.buffer
        self._key = key

    @classmethod
    def connect(cls, plan: StepPlan) -> SampleStream:
        """The stream of a step's round. Raises ActorLost if the buffer is not in this process,
        because it was lost: this coordinator outlived it, or came too late."""
        run_id = plan.run.run_id
        if run_id not in _here:
            raise ActorLost(f"{BUFFER} of {run_id} is not in this process")
        return cls(_here[run_id], round_key(plan))

    async def put(self, stage: Stage[Record], records: Sequence[Record]) -> None:
        """Append records to a stage; waits while the stage is full."""
        if records:
            work = self._buffer.put(stage, self._key, records, PUT_WAIT_S)
            await self._here.call(work, PUT_WAIT_S + ANSWER_S)

    async def take(
        self, stage: Stage[Record], max_items: int, wait_s: float = TAKE_WAIT_S
    ) -> tuple[list[Record], bool]:
        """Wait up to wait_s for up to max_items records; returns them, and True if none follows."""
        work = self._buffer.take(stage, self._key, max_items, wait_s)
        return await self._here.call(work, wait_s + ANSWER_S)

    async def drain(self, stage: Stage[Record]) -> AsyncIterator[Record]:
        """Yield every record of a stage as it arrives, until the stage is over."""
        closed = False
        while not closed:
            arrived, closed = await self.take(stage, max_items=256)
            for record in arrived:
                yield record

    async def publish(self, generated: Sequence[Generated]) -> None:
        """Hand finished responses over for scoring."""
        await self.put(GENERATED, generated)

    async def arrived(self, wait_s: float) -> tuple[list[Generated], bool]:
        """Wait up to wait_s for finished responses; returns them, and True if none will follow."""
        return await self.take(GENERATED, max_items=256, wait_s=wait_s)

    async def tell(self, score: Score) -> None:
        """Hand a verdict back to the round."""
        await self.put(SCORED, [score])

    async def scored(self, wait_s: float) -> list[Score]:
        """Return the verdicts since the last call; waits up to wait_s for the first."""
        return (await self.take(SCORED, max_items=1024, wait_s=wait_s))[0]

    async def published(self, wait_s: float) -> list[int]:
        """Wait up to wait_s for weight versions that have reached every engine; returns them."""
        return (await self.take(PUBLISHED, max_items=64, wait_s=wait_s))[0]

    async def announce_worker(self, notice: WorkerNotice) -> None:
        """Send this notice about an elastic worker to every round that is open or opens later."""
        await self._here.call(self._buffer.announce_worker(notice), ANSWER_S)

    async def close(self, stage: Stage[Any]) -> None:
        """End a stage of this round, whose producer is done."""
        await self._here.call(self._buffer.close_stage(stage, self._key), ANSWER_S)

    async def abort(self, reason: str) -> None:
        """Abort this round, and the rounds that are open beside it, for all their coordinators."""
        await self._here.call(self._buffer.abort(reason), ABORT_S)


def round_key(plan: StepPlan) -> RoundKey:
    """The buffer's key for this attempt at this step. An evaluation of a step's weights has a
    larger key than all attempts at that step."""
    of_kind = ATTEMPTS // 2 if plan.is_evaluation else 0
    return RoundKey(plan.step * ATTEMPTS + of_kind + plan.attempt)


def is_attempt_at(plan: StepPlan, key: int, *, or_before: bool = False) -> bool:
    """True if a key belongs to an attempt at this step, or (or_before) at an earlier one. Keys of
    evaluations match plans of evaluations alone."""
    step, number = divmod(key, ATTEMPTS)
    is_evaluation = number >= ATTEMPTS // 2
    return is_evaluation == plan.is_evaluation and (
        step == plan.step or (or_before and step < plan.step)
    )


async def aborting(stream: SampleStream, who: str, work: Awaitable[Result]) -> Result:
    """Await a coordinator's work. If the work fails, the round is aborted for the other
    coordinators, too, and the root cause is raised. who: the stage, for the abort's reason."""
    try:
        return await work
    except BaseException as error:
        cause = root_cause(error)
        if not isinstance(cause, RoundAborted):
            await stream.abort(f"{who} failed: {type(cause).__name__}: {cause}")
        raise cause from error.__cause__


def root_cause(error: BaseException) -> BaseException:
    """The failure that made others fail: in an exception group the first one that is not a
    RoundAborted, which only follows from another failure."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [root_cause(failure) for failure in error.exceptions]
    return next((cause for cause in causes if not isinstance(cause, RoundAborted)), causes[0])
