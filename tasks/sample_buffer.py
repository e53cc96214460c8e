"""Where the responses of a round wait between rollout, reward and training; lives in one Dask
actor.

    launched ─▶ GENERATED ─▶ SCORED ─▶ GROUPED ─▶ consumed
    run_rollout    score_responses   run_rollout    accumulate_gradients

A round is an attempt at a step or at an evaluation, told by its key; later rounds have larger keys.
Records are opaque here. All methods are async and run on one event loop, so nothing locks across
threads. Callers pass tuples of bytes, never bare lists: Dask would serialise every element on its
own. Leaves out durability (see `journal`) and any opinion on order: each stage is first in, first
out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NewType, TypeVar

from artifacts.records import Generated, Group, Score
from tasks.scheduling.stream_training import ScaleDown

Record = TypeVar("Record")
RoundKey = NewType("RoundKey", int)


@dataclass(frozen=True, slots=True)
class Stage(Generic[Record]):
    """Where records of one type wait."""

    name: str  # what has become of the responses in it


GENERATED: Stage[Generated] = Stage("generated")  # finished responses, for the reward
SCORED: Stage[Score] = Stage("scored")  # verdicts, for the round's scheduler
GROUPED: Stage[Group | ScaleDown] = Stage("grouped")  # for training: groups, and who may begin
STAGES: tuple[Stage[Any], ...] = (GENERATED, SCORED, GROUPED)  # Any: of any record


class RoundAborted(RuntimeError):
    """The round was aborted; whoever waits on the buffer must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a consumer got."""

    # at most max_items, in the order they were put; empty when the wait was over
    items: tuple[object, ...]
    closed: bool  # True when nothing will ever follow in this round: the consumer is done


@dataclass(slots=True)
class _Channel:
    """One stage of one round."""

    items: deque[object]
    closed: bool = False


class SampleBuffer:
    """The bounded stages of the round that is open; items and waits of older rounds are turned
    away."""

    def __init__(self, capacities: Mapping[Stage[Any], int]) -> None:
        wrong = [stage.name for stage in STAGES if capacities.get(stage, 0) < 1]
        if wrong:
            told = {stage.name: capacity for stage, capacity in capacities.items()}
            raise ValueError(
                f"every stage must have a capacity >= 1 items, got {told}; set {wrong[0]}"
            )
        self._capacities = dict(capacities)
        self._open = RoundKey(0)
        self._aborted: str | None = None
        self._channels = _empty_channels()
        self._changed = asyncio.Condition()  # binds to a loop at its first wait, not here

    async def open_round(self, key: RoundKey) -> dict[str, int]:
        """Start a round; whatever an older one left is dropped and counted by stage. A round may be
        reopened after an abort.

        Raises ValueError for a round before the open one. Reopening a round requires that its
        coordinators have ended: their items could not be told from the new ones.
        """
        if key < self._open:
            raise ValueError(
                f"rounds must open in order, got round {key} after round {self._open}; start a new"
                " buffer instead"
            )
        dropped = self._lengths()
        self._open = key
        self._aborted = None
        self._channels = _empty_channels()
        await self._wake()
        return dropped

    async def put(
        self, stage: Stage[Any], key: RoundKey, items: Sequence[object], wait_s: float
    ) -> bool:
        """True once all items are in; False if their round is over. Waits while the stage is full.

        A batch goes in whole as soon as the stage is below its capacity, which it may exceed by one
        batch. Nothing went in when this raises: TimeoutError after wait_s, RoundAborted, or
        RuntimeError after close_stage.
        """

        def may_go_in() -> bool:
            return key < self._open or len(self._channels[stage].items) < self._capacities[stage]

        what = f"room for {len(items)} items of round {key} in {stage.name!r}"
        await self._wait(may_go_in, key, wait_s, what)
        if key < self._open:
            return False
        if self._channels[stage].closed:
            raise RuntimeError(
                f"stage {stage.name!r} of round {key} is closed; its producer must put before it"
                " closes"
            )
        self._channels[stage].items.extend(items)
        await self._wake()
        return True

    async def take(self, stage: Stage[Any], key: RoundKey, max_items: int, wait_s: float) -> Taken:
        """Up to max_items, after waiting at most wait_s for the first. To a consumer of an older
        round the stage is closed."""

        def is_worth_waking() -> bool:
            channel = self._channels[stage]
            return key < self._open or bool(channel.items) or channel.closed

        try:
            await self._wait(
                is_worth_waking, key, wait_s, f"items of round {key} in {stage.name!r}"
            )
        except TimeoutError:
            return Taken(items=(), closed=False)
        if key < self._open:
            return Taken(items=(), closed=True)
        channel = self._channels[stage]
        items = tuple(channel.items.popleft() for _ in range(min(max_items, len(channel.items))))
        await self._wake()
        return Taken(items=items, closed=channel.closed and not channel.items)

    async def close_stage(self, stage: Stage[Any], key: RoundKey) -> None:
        """Its producer is done. Closing twice, or for an older round, changes nothing."""
        if key == self._open:
            self._channels[stage].closed = True
            await self._wake()

    async def abort(self, reason: str) -> None:
        """Every put and take of the open round raises RoundAborted from now on, those that wait
        included. First reason wins."""
        self._aborted = self._aborted or reason
        await self._wake()

    async def _wait(
        self, ready: Callable[[], bool], key: RoundKey, wait_s: float, what: str
    ) -> None:
        if key > self._open:
            raise ValueError(
                f"round {key} must be opened before it is used, the open round is {self._open};"
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
        if self._aborted is not None and key == self._open:
            raise RoundAborted(self._aborted)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _lengths(self) -> dict[str, int]:
        return {stage.name: len(channel.items) for stage, channel in self._channels.items()}


def _empty_channels() -> dict[Stage[Any], _Channel]:
    return {stage: _Channel(items=deque()) for stage in STAGES}
