"""How coordinators reach the sample buffer: records in and out, as bytes, with one deadline.

Each attempt at a step opens a round of its own in the buffer, so that what a lost attempt left
behind is turned away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

from artifacts.records import pack, unpack
from tasks.cluster.actors import Remote
from tasks.plan import BUFFER, StepPlan
from tasks.rewards.pool import close_pools
from tasks.sample_buffer import RoundAborted, SampleBuffer, Stage, Taken

Result = TypeVar("Result")
TAKE_WAIT_S = 5.0  # longest single wait; an abort ends it at once
PUT_WAIT_S = 120.0  # back-pressure may hold a producer this long
ATTEMPTS = 1000  # rounds of one step in the buffer
CAPACITIES: dict[Stage, int] = {"generated": 4096, "scores": 4096, "groups": 1024}


class BufferActor(SampleBuffer):
    """The sample buffer in the control worker."""

    async def ping(self) -> None:
        """Answers as long as the worker lives."""

    async def close(self) -> None:
        """End the processes of the rewards that were scored beside this buffer."""
        await asyncio.to_thread(close_pools)


class SampleStream:
    """One round's view of the buffer."""

    def __init__(self, remote: Remote, plan: StepPlan) -> None:
        self._remote = remote
        self._round = round_key(plan)
        self._deadline_s = plan.run.deadlines.engine_call_s + PUT_WAIT_S

    @classmethod
    def connect(cls, plan: StepPlan) -> SampleStream:
        return cls(Remote.connect(plan.run.run_id, BUFFER), plan)

    async def put(self, stage: Stage, records: Sequence[object]) -> None:
        """Hand records on; waits while the stage is full."""
        if not records:
            return
        if stage == "groups":
            for record in records:
                await self._call("put_group", pack(record), PUT_WAIT_S)
        else:
            await self._call(f"put_{stage}", tuple(map(pack, records)), PUT_WAIT_S)

    async def take(
        self, stage: Stage, max_items: int, wait_s: float = TAKE_WAIT_S
    ) -> tuple[list[Any], bool]:  # Any: records
        """Up to max_items records after waiting wait_s at most, and whether the stage is over."""
        taken: Taken = await self._call(f"take_{stage}", max_items, wait_s)
        return [unpack(item) for item in taken.items if isinstance(item, bytes)], taken.closed

    async def drain(self, stage: Stage) -> AsyncIterator[Any]:  # Any: records
        """Every record of a stage as it comes, until the stage is over."""
        closed = False
        while not closed:
            arrived, closed = await self.take(stage, max_items=256)
            for one in arrived:
                yield one

    async def close(self, stage: Stage) -> None:
        """Nothing follows from this producer."""
        await self._call("close_stage", stage)

    async def abort(self, reason: str) -> None:
        """End the round for everybody."""
        await self._remote.call("abort", reason, deadline_s=30)

    async def _call(self, method: str, *args: object) -> Any:  # Any: whatever the buffer returns
        return await self._remote.call(method, self._round, *args, deadline_s=self._deadline_s)


def round_key(plan: StepPlan) -> int:
    """The buffer's number for this attempt at this step; an evaluation comes after the attempts at
    the step it follows."""
    return plan.step * ATTEMPTS + (ATTEMPTS // 2 if plan.is_evaluation else 0) + plan.attempt


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
    causes = [root_cause(one) for one in error.exceptions]
    return next((cause for cause in causes if not isinstance(cause, RoundAborted)), causes[0])
