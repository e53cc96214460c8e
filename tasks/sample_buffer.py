"""Where the responses of a round wait between rollout, reward and training; lives in one Dask
actor.

    run_rollout --generated--> score_responses --scores--> run_rollout --groups-->
    accumulate_gradients

Items are opaque. All methods are async and run on one event loop, so nothing here locks across
threads. Callers pass tuples or bytes, never bare lists: Dask would serialise every element on its
own. Leaves out durability (see `journal`) and any opinion on order: each stage is first in, first
out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Stage = Literal["generated", "scores", "groups"]
STAGES: tuple[Stage, ...] = ("generated", "scores", "groups")


class RoundAborted(RuntimeError):
    """The round was aborted; whoever waits on the buffer must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a consumer got."""

    items: tuple[
        object, ...
    ]  # at most max_items, in the order they were put; empty when the wait was over
    closed: bool  # True when nothing will ever follow in this round: the consumer is done


@dataclass(slots=True)
class _Channel:
    """One stage of one round."""

    items: deque[object]
    closed: bool = False


class SampleBuffer:
    """Three bounded stages of the round that is open; items and waits of older rounds are turned
    away."""

    def __init__(self, capacities: Mapping[Stage, int]) -> None:
        wrong = [stage for stage in STAGES if capacities.get(stage, 0) < 1]
        if wrong:
            raise ValueError(
                f"every stage must have a capacity >= 1 items, got {dict(capacities)}; set"
                f" {wrong[0]}"
            )
        self._capacities = dict(capacities)
        self._step = 0
        self._aborted: str | None = None
        self._late = dict.fromkeys(STAGES, 0)
        self._channels = _empty_channels()
        self._changed = asyncio.Condition()  # binds to a loop at its first wait, not here

    async def open_round(self, step: int) -> dict[Stage, int]:
        """Start a round; whatever an older one left is dropped and counted by stage. A step may be
        reopened after an abort.

        Raises ValueError for a step before the open one. Reopening a step requires that the
        coordinators of the first attempt have ended: their items could not be told from the new
        ones.
        """
        if step < self._step:
            raise ValueError(
                f"rounds must open in order, got step {step} after step {self._step}; start a new"
                " buffer instead"
            )
        dropped = self._lengths()
        self._step, self._aborted, self._channels = step, None, _empty_channels()
        await self._wake()
        return dropped

    async def put_generated(self, step: int, items: Sequence[object], wait_s: float) -> bool:
        """Hand finished responses to the reward. See `put` for the contract."""
        return await self._put("generated", step, items, wait_s)

    async def take_generated(self, step: int, max_items: int, wait_s: float) -> Taken:
        """Finished responses for the reward. See `_take` for the contract."""
        return await self._take("generated", step, max_items, wait_s)

    async def put_scores(self, step: int, items: Sequence[object], wait_s: float) -> bool:
        """Hand verdicts to the round's scheduler."""
        return await self._put("scores", step, items, wait_s)

    async def take_scores(self, step: int, max_items: int, wait_s: float) -> Taken:
        """Verdicts for the round's scheduler."""
        return await self._take("scores", step, max_items, wait_s)

    async def put_group(self, step: int, item: object, wait_s: float) -> bool:
        """Hand one accepted group to the learner."""
        return await self._put("groups", step, (item,), wait_s)

    async def take_groups(self, step: int, max_items: int, wait_s: float) -> Taken:
        """Accepted groups for the learner."""
        return await self._take("groups", step, max_items, wait_s)

    async def close_stage(self, step: int, stage: Stage) -> None:
        """Its producer is done. Closing twice, or for an older round, changes nothing."""
        if step == self._step:
            self._channels[stage].closed = True
            await self._wake()

    async def abort(self, reason: str) -> None:
        """Every put and take of the open round raises RoundAborted from now on, those that wait
        included. First reason wins."""
        self._aborted = self._aborted or reason
        await self._wake()

    async def aborted(self) -> str | None:
        """The reason, for coordinators that poll between two waits; None while the round runs."""
        return self._aborted

    async def depths(self) -> dict[str, int]:
        """Items waiting by stage, and `late_<stage>`: items of older rounds refused so far."""
        late = {f"late_{stage}": count for stage, count in self._late.items()}
        return {**{str(stage): length for stage, length in self._lengths().items()}, **late}

    async def _put(self, stage: Stage, step: int, items: Sequence[object], wait_s: float) -> bool:
        """True once all items are in; False, and counted, if their round is over. Waits while the
        stage is full.

        A batch goes in whole as soon as the stage is below its capacity, which it may exceed by one
        batch. Nothing went in when this raises: TimeoutError after wait_s, RoundAborted, or
        RuntimeError after close_stage.
        """

        def may_go_in() -> bool:
            return step < self._step or len(self._channels[stage].items) < self._capacities[stage]

        await self._wait(
            may_go_in, step, wait_s, f"room for {len(items)} items of step {step} in {stage!r}"
        )
        if step < self._step:
            self._late[stage] += len(items)
            return False
        if self._channels[stage].closed:
            raise RuntimeError(
                f"stage {stage!r} of step {step} is closed; its producer must put before it closes"
            )
        self._channels[stage].items.extend(items)
        await self._wake()
        return True

    async def _take(self, stage: Stage, step: int, max_items: int, wait_s: float) -> Taken:
        """Up to max_items, after waiting at most wait_s for the first. To a consumer of an older
        round the stage is closed."""

        def worth_waking() -> bool:
            return (
                step < self._step
                or bool(self._channels[stage].items)
                or self._channels[stage].closed
            )

        try:
            await self._wait(worth_waking, step, wait_s, f"items of step {step} in {stage!r}")
        except TimeoutError:
            return Taken(items=(), closed=False)
        if step < self._step:
            return Taken(items=(), closed=True)
        channel = self._channels[stage]
        items = tuple(channel.items.popleft() for _ in range(min(max_items, len(channel.items))))
        await self._wake()
        return Taken(items=items, closed=channel.closed and not channel.items)

    async def _wait(self, ready: Callable[[], bool], step: int, wait_s: float, what: str) -> None:
        if step > self._step:
            raise ValueError(
                f"step {step} must be opened before it is used, the open round is {self._step};"
                " call open_round"
            )
        async with self._changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(lambda: ready() or self._aborted is not None)
            except TimeoutError as error:
                raise TimeoutError(
                    f"waited {wait_s:.0f} s for {what}; the buffer holds {self._lengths()}"
                ) from error
        if self._aborted is not None and step == self._step:
            raise RoundAborted(self._aborted)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _lengths(self) -> dict[Stage, int]:
        return {stage: len(channel.items) for stage, channel in self._channels.items()}


def _empty_channels() -> dict[Stage, _Channel]:
    return {stage: _Channel(items=deque()) for stage in STAGES}
