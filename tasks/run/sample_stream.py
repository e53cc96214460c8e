"""How coordinators reach the sample buffer: records in and out, as bytes, with one deadline.

Each attempt at a step opens a round of its own in the buffer, so that what a lost attempt left
behind is turned away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from artifacts.records import Generated, Score, pack, unpack
from tasks.cluster.actors import Remote
from tasks.elastic.records import GuestTold
from tasks.rewards.pool import close_pools
from tasks.run.plan import StepPlan
from tasks.run.sample_buffer import (
    GENERATED,
    GROUPED,
    GUESTS,
    PUBLISHED,
    SCORED,
    Record,
    RoundAborted,
    RoundKey,
    SampleBuffer,
    Stage,
    Taken,
)

Result = TypeVar("Result")
BUFFER = "sample-buffer"  # name of the sample buffer's actor
TAKE_WAIT_S = 5.0  # longest single wait; an abort ends it at once
PUT_WAIT_S = 120.0  # back-pressure may hold a producer this long
MAX_TELLING = 8  # verdicts on their way to the buffer at the same time
ABORT_S = 30.0  # nobody who ends waits longer for the others to hear of it
ATTEMPTS = 1000  # rounds of one step in the buffer
CAPACITIES: Mapping[Stage[Any], int] = {
    GENERATED: 4096, SCORED: 4096, GROUPED: 1024, PUBLISHED: 64, GUESTS: 64
}  # fmt: skip


class BufferActor(SampleBuffer):
    """The sample buffer in the control worker."""

    async def ping(self) -> None:
        """Answers as long as the worker lives."""

    async def close(self) -> None:
        """End the processes of the rewards that were scored beside this buffer."""
        await asyncio.to_thread(close_pools)


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """The sample buffer as its callers see it, see `SampleBuffer`; raises ActorLost when it is
    gone."""

    remote: Remote
    deadline_s: float  # of a call, the time that it may wait in the buffer not included

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> None:
        await self.remote.call("open_round", key, tuple(beside), deadline_s=self.deadline_s)

    async def announce(self, version: int) -> None:
        await self.remote.call("announce", pack(version), deadline_s=self.deadline_s)

    async def tell_guest(self, told: GuestTold) -> None:
        is_there = told.kind == "joined"
        await self.remote.call(
            "tell_guest", told.name, pack(told), is_there, deadline_s=self.deadline_s
        )

    async def put(
        self, stage: Stage[Record], key: RoundKey, records: Sequence[Record], wait_s: float
    ) -> bool:
        packed = tuple(pack(record) for record in records)
        deadline_s = self.deadline_s + wait_s
        accepted: bool = await self.remote.call(
            "put", stage, key, packed, wait_s, deadline_s=deadline_s
        )
        return accepted

    async def take(
        self, stage: Stage[Record], key: RoundKey, max_items: int, wait_s: float
    ) -> tuple[list[Record], bool]:
        """The records, and whether nothing will follow them."""
        deadline_s = self.deadline_s + wait_s
        taken: Taken = await self.remote.call(
            "take", stage, key, max_items, wait_s, deadline_s=deadline_s
        )
        return [unpack(item) for item in taken.items if isinstance(item, bytes)], taken.closed

    async def close_stage(self, stage: Stage[Any], key: RoundKey) -> None:
        await self.remote.call("close_stage", stage, key, deadline_s=self.deadline_s)

    async def abort(self, reason: str, deadline_s: float = ABORT_S) -> None:
        await self.remote.call("abort", reason, deadline_s=deadline_s)


class SampleStream:
    """One round's view of the buffer."""

    def __init__(self, buffer: RemoteBuffer, key: RoundKey) -> None:
        self._buffer = buffer
        self._key = key

    @classmethod
    def connect(cls, plan: StepPlan) -> SampleStream:
        """Raises ActorLost if the buffer is gone."""
        remote = Remote.connect(plan.run.run_id, BUFFER)
        return cls(RemoteBuffer(remote, plan.run.deadlines.engine_call_s), round_key(plan))

    async def put(self, stage: Stage[Record], records: Sequence[Record]) -> None:
        """Hand records on; waits while the stage is full."""
        if records:
            await self._buffer.put(stage, self._key, records, PUT_WAIT_S)

    async def take(
        self, stage: Stage[Record], max_items: int, wait_s: float = TAKE_WAIT_S
    ) -> tuple[list[Record], bool]:
        """Up to max_items records after waiting wait_s at most, and whether the stage is over."""
        return await self._buffer.take(stage, self._key, max_items, wait_s)

    async def drain(self, stage: Stage[Record]) -> AsyncIterator[Record]:
        """Every record of a stage as it comes, until the stage is over."""
        closed = False
        while not closed:
            arrived, closed = await self.take(stage, max_items=256)
            for record in arrived:
                yield record

    async def announce(self, version: int) -> None:
        """Tell every round that is open or opens later that all engines have this version."""
        await self._buffer.announce(version)

    async def tell_guest(self, told: GuestTold) -> None:
        """Tell every round that is open or opens later of a guest."""
        await self._buffer.tell_guest(told)

    async def close(self, stage: Stage[Any]) -> None:
        """Nothing follows from this producer."""
        await self._buffer.close_stage(stage, self._key)

    async def abort(self, reason: str) -> None:
        """End the round for everybody, and with it those that are open beside it."""
        await self._buffer.abort(reason)


@dataclass(frozen=True, slots=True)
class StreamFeed:
    """The reward stage as the driver of a round sees it (`ScoreFeed`)."""

    stream: SampleStream

    async def publish(self, generated: Sequence[Generated]) -> None:
        await self.stream.put(GENERATED, generated)

    async def scored(self, wait_s: float) -> list[Score]:
        scores, _ = await self.stream.take(SCORED, max_items=1024, wait_s=wait_s)
        return scores


@dataclass(frozen=True, slots=True)
class StreamPublications:
    """The training of earlier steps as the driver of a round sees it (`Publications`)."""

    stream: SampleStream

    async def published(self, wait_s: float) -> list[int]:
        versions, _ = await self.stream.take(PUBLISHED, max_items=64, wait_s=wait_s)
        return versions


@dataclass(frozen=True, slots=True)
class StreamDelivery:
    """The rollout as the reward stage sees it (`Delivery`).

    A call is a connection of its own, and verdicts come by the hundred: so many at a time would
    leave the process no file to open.
    """

    stream: SampleStream
    _telling: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_TELLING), init=False
    )

    async def arrived(self, wait_s: float) -> tuple[list[Generated], bool]:
        return await self.stream.take(GENERATED, max_items=256, wait_s=wait_s)

    async def tell(self, score: Score) -> None:
        async with self._telling:
            await self.stream.put(SCORED, [score])


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
