"""Access to the sample buffer for a round's coordinators, with a deadline for every wait.

    coordinators, threads of the worker `control` ─▶ LocalBuffer ─▶ the buffer, records as they are
    the flow, and the keeper of elastic workers ───────────▶ RemoteBuffer ─▶ its actor, records as
    bytes

Each attempt at a step opens a round of its own in the buffer, so that what a lost attempt left
behind is turned away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from artifacts.records import Generated, Score, pack, unpack
from tasks.cluster.actors import ActorLost, Remote
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
ANSWER_S = 60.0  # beyond its wait, until the buffer's loop counts as lost
ABORT_S = 30.0  # longest wait of a coordinator that ends until the others are aborted
ATTEMPTS = 1000  # rounds of one step in the buffer
CAPACITIES: Mapping[Stage[Any], int] = {
    GENERATED: 4096, SCORED: 4096, GROUPED: 1024, PUBLISHED: 64, ELASTIC_WORKERS: 64
}  # fmt: skip


class BufferActor(SampleBuffer):
    """The sample buffer in the control worker, whose coordinators find it in their process."""

    def __init__(self, capacities: Mapping[Stage[Any], int], run_id: str) -> None:
        super().__init__(capacities)
        self._run_id = run_id

    async def ping(self) -> None:
        """Answer as long as the worker lives."""

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> dict[str, int]:
        """See `SampleBuffer`; from then on `SampleStream.connect` finds this buffer."""
        _here[self._run_id] = LocalBuffer(self, asyncio.get_running_loop())
        return await super().open_round(key, beside)

    async def announce_packed(self, version: bytes) -> None:
        """`announce`, called from another process."""
        await self.announce(unpack(version))

    async def announce_worker_packed(self, notice: bytes) -> None:
        """`announce_worker`, called from another process."""
        await self.announce_worker(unpack(notice))

    async def close(self) -> None:
        """End the processes of the rewards that were scored beside this buffer."""
        _here.pop(self._run_id, None)
        await asyncio.to_thread(close_pools)


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """The sample buffer in another process, see `SampleBuffer`; raises ActorLost when the buffer is
    gone."""

    remote: Remote
    deadline_s: float  # of a call

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> None:
        await self.remote.call("open_round", key, tuple(beside), deadline_s=self.deadline_s)

    async def announce(self, version: int) -> None:
        await self.remote.call("announce_packed", pack(version), deadline_s=self.deadline_s)

    async def announce_worker(self, notice: WorkerNotice) -> None:
        await self.remote.call("announce_worker_packed", pack(notice), deadline_s=self.deadline_s)

    async def abort(self, reason: str, deadline_s: float = ABORT_S) -> None:
        await self.remote.call("abort", reason, deadline_s=deadline_s)


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """The sample buffer of this process, for the event loops of all its threads.

    Records are handed on as they are: a consumer must not change one.
    """

    buffer: SampleBuffer
    loop: asyncio.AbstractEventLoop  # the one that the buffer's methods run on

    async def call(self, work: Coroutine[Any, Any, Result], deadline_s: float) -> Result:
        """Await a coroutine of the buffer. Raises ActorLost if its loop does not answer."""
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
    """One round's view of the buffer: the reward stage (`ScoreFeed`) and the training of earlier
    steps (`Publications`) to the driver, the rollout to the reward stage (`Delivery`)."""

    def __init__(self, here: LocalBuffer, key: RoundKey) -> None:
        self._here, self._buffer = here, here.buffer
        self._key = key

    @classmethod
    def connect(cls, plan: StepPlan) -> SampleStream:
        """The stream of a step's round. Raises ActorLost where the buffer is not in this process:
        it was lost, and this coordinator outlived it or came too late."""
        run_id = plan.run.run_id
        if run_id not in _here:
            raise ActorLost(f"{BUFFER} of {run_id} is not in this process")
        return cls(_here[run_id], round_key(plan))

    async def put(self, stage: Stage[Record], records: Sequence[Record]) -> None:
        """Hand records on; waits while the stage is full."""
        if records:
            work = self._buffer.put(stage, self._key, records, PUT_WAIT_S)
            await self._here.call(work, PUT_WAIT_S + ANSWER_S)

    async def take(
        self, stage: Stage[Record], max_items: int, wait_s: float = TAKE_WAIT_S
    ) -> tuple[list[Record], bool]:
        """Up to max_items records after waiting wait_s at most, and whether the stage is over."""
        work = self._buffer.take(stage, self._key, max_items, wait_s)
        taken = await self._here.call(work, wait_s + ANSWER_S)
        return [*taken.items], taken.closed

    async def drain(self, stage: Stage[Record]) -> AsyncIterator[Record]:
        """Every record of a stage as it comes, until the stage is over."""
        closed = False
        while not closed:
            arrived, closed = await self.take(stage, max_items=256)
            for record in arrived:
                yield record

    async def publish(self, generated: Sequence[Generated]) -> None:
        """Hand finished responses over for scoring."""
        await self.put(GENERATED, generated)

    async def arrived(self, wait_s: float) -> tuple[list[Generated], bool]:
        """Finished responses after waiting wait_s at most, and whether none will follow."""
        return await self.take(GENERATED, max_items=256, wait_s=wait_s)

    async def tell(self, score: Score) -> None:
        """Hand a verdict back to the round."""
        await self.put(SCORED, [score])

    async def scored(self, wait_s: float) -> list[Score]:
        """Verdicts since the last call; waits up to wait_s for the first."""
        return (await self.take(SCORED, max_items=1024, wait_s=wait_s))[0]

    async def published(self, wait_s: float) -> list[int]:
        """Weight versions that every engine has since the last call; waits up to wait_s for the
        first."""
        return (await self.take(PUBLISHED, max_items=64, wait_s=wait_s))[0]

    async def announce_worker(self, notice: WorkerNotice) -> None:
        """Notify every round that is open or opens later of an elastic worker."""
        await self._here.call(self._buffer.announce_worker(notice), ANSWER_S)

    async def close(self, stage: Stage[Any]) -> None:
        """End the stage: its producer is done."""
        await self._here.call(self._buffer.close_stage(stage, self._key), ANSWER_S)

    async def abort(self, reason: str) -> None:
        """End the round for everybody, and with it those that are open beside it."""
        await self._here.call(self._buffer.abort(reason), ABORT_S)


def round_key(plan: StepPlan) -> RoundKey:
    """The buffer's key for this attempt at this step; an evaluation comes after the attempts at
    the step it follows."""
    of_kind = ATTEMPTS // 2 if plan.is_evaluation else 0
    return RoundKey(plan.step * ATTEMPTS + of_kind + plan.attempt)


def is_attempt_at(plan: StepPlan, key: int, *, or_before: bool = False) -> bool:
    """Whether a key is of an attempt at this step, or at one before it; those at evaluations are
    apart."""
    step, number = divmod(key, ATTEMPTS)
    is_evaluation = number >= ATTEMPTS // 2
    return is_evaluation == plan.is_evaluation and (
        step == plan.step or (or_before and step < plan.step)
    )


async def aborting(stream: SampleStream, who: str, work: Awaitable[Result]) -> Result:
    """Await a coordinator's work; its failure ends the round for the other coordinators, too."""
    try:
        return await work
    except BaseException as error:
        cause = root_cause(error)
        if not isinstance(cause, RoundAborted):
            await stream.abort(f"{who} failed: {type(cause).__name__}: {cause}")
        raise cause from error.__cause__


def root_cause(error: BaseException) -> BaseException:
    """The failure that made the others fail: of a task group the first that is no echo of an
    aborted round."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [root_cause(failure) for failure in error.exceptions]
    return next((cause for cause in causes if not isinstance(cause, RoundAborted)), causes[0])
