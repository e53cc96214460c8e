"""The sample buffer: the responses of a round between rollout, reward and training, in one Dask
actor.

    launched ─▶ GENERATED ─▶ SCORED ─▶ GROUPED ─▶ consumed
    run_rollout    score_responses   run_rollout    accumulate_gradients
    publish_weights ─▶ PUBLISHED of every round that is open, and of those that open later
    keeper of elastic workers ─▶ ELASTIC_WORKERS of these rounds, likewise

A round is an attempt at a step or at an evaluation, identified by its key; later rounds have larger
keys. Rounds that overlap are open side by side, each with stages of its own, first in, first out.
All methods run on one event loop. Leaves out how callers reach it (`sample_stream`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NewType, TypeVar

from artifacts.records import Generated, Group, Score
from tasks.rounds.elastic_engines import WorkerNotice
from tasks.scheduling.stream_training import AllAccepted, ScaleDown

Record = TypeVar("Record")
RoundKey = NewType("RoundKey", int)


@dataclass(frozen=True, slots=True)
class Stage(Generic[Record]):
    """A queue for records of one type."""

    name: str  # the state of the responses in it


GENERATED: Stage[Generated] = Stage("generated")  # finished responses, for the reward
SCORED: Stage[Score] = Stage("scored")  # verdicts, for the round's scheduler
# groups to train, learners that may begin; closed when the round is recorded
GROUPED: Stage[Group | ScaleDown | AllAccepted] = Stage("grouped")
PUBLISHED: Stage[int] = Stage("published")  # weight versions that every engine has
ELASTIC_WORKERS: Stage[WorkerNotice] = Stage("elastic")  # engines that come and go in mid-round
# Any: of any record
STAGES: tuple[Stage[Any], ...] = (GENERATED, SCORED, GROUPED, PUBLISHED, ELASTIC_WORKERS)


class RoundAborted(RuntimeError):
    """The round was aborted: every coordinator that waits on the buffer must stop."""


@dataclass(slots=True)
class _Channel:
    """One stage of one round."""

    items: deque[object]
    closed: bool = False


@dataclass(slots=True)
class _Round:
    """One round that is open."""

    channels: dict[Stage[Any], _Channel]  # Any: of any record
    aborted: str | None = None  # why


class SampleBuffer:
    """The bounded stages of all open rounds; those of a round that is over read as closed."""

    def __init__(self, capacities: Mapping[Stage[Any], int]) -> None:
        wrong = [stage.name for stage in STAGES if capacities.get(stage, 0) < 1]
        if wrong:
            given = {stage.name: capacity for stage, capacity in capacities.items()}
            raise ValueError(
                f"every stage must have a capacity >= 1 items, got {given}; set {wrong[0]}"
            )
        self._capacities = dict(capacities)
        self._open: dict[RoundKey, _Round] = {}
        self._over: set[RoundKey] = set()  # rounds that were open once
        self._newest: tuple[int, ...] = ()  # the version that was announced last, if any
        # the last notice of each elastic worker that is present, by name
        self._elastic_workers: dict[str, WorkerNotice] = {}
        self._changed = asyncio.Condition()  # binds to a loop at its first wait, not here

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> dict[str, int]:
        """Open a round; every other round is over, except those listed in `beside`. Returns the
        number of their items that are dropped, by stage. A round may be reopened after an abort and
        the end of its coordinators. Raises ValueError for a round before those that are open."""
        if self._is_before_all(key):
            raise ValueError(
                f"rounds must open in order, got round {key} after round {min(self._open)}; start a"
                " new buffer instead"
            )
        gone = [old for old in self._open if old == key or old not in beside]
        dropped = self._lengths(gone)
        for old in gone:
            del self._open[old]
        self._over |= set(gone) - {key}
        self._open[key] = _Round(channels={stage: _Channel(items=deque()) for stage in STAGES})
        self._open[key].channels[PUBLISHED].items.extend(self._newest)
        self._open[key].channels[ELASTIC_WORKERS].items.extend(self._elastic_workers.values())
        await self._wake()
        return dropped

    async def put(
        self, stage: Stage[Any], key: RoundKey, items: Sequence[object], wait_s: float
    ) -> bool:
        """Append all items to a stage, as soon as it is below its capacity; False if their round is
        over. No item went in if this raises: TimeoutError after wait_s, RoundAborted, or
        RuntimeError after close_stage."""

        def has_room(channel: _Channel) -> bool:
            return len(channel.items) < self._capacities[stage]

        what = f"room for {len(items)} items of round {key} in {stage.name!r}"
        channel = await self._wait(stage, key, has_room, wait_s, what)
        if channel is None:
            return False
        if channel.closed:
            raise RuntimeError(
                f"stage {stage.name!r} of round {key} is closed; its producer must put before it"
                " closes"
            )
        channel.items.extend(items)
        await self._wake()
        return True

    async def take(
        self, stage: Stage[Any], key: RoundKey, max_items: int, wait_s: float
    ) -> tuple[list[Any], bool]:
        """Wait up to wait_s for the first of up to max_items. Removes and returns them in the order
        they were put, and True if none will follow in this round, as when it is over."""

        def is_worth_waking(channel: _Channel) -> bool:
            return bool(channel.items) or channel.closed

        what = f"items of round {key} in {stage.name!r}"
        try:
            channel = await self._wait(stage, key, is_worth_waking, wait_s, what)
        except TimeoutError:
            return [], False
        if channel is None:
            return [], True
        items = [channel.items.popleft() for _ in range(min(max_items, len(channel.items)))]
        await self._wake()
        return items, channel.closed and not channel.items

    async def announce(self, version: int) -> None:
        """Put this weight version into the stage PUBLISHED of every open round. Rounds that open
        before the next version is announced begin with this one."""
        self._newest = (version,)
        await self._put_in_all(PUBLISHED, version)

    async def announce_worker(self, notice: WorkerNotice) -> None:
        """Put this notice into the stage ELASTIC_WORKERS of every open round. As long as the worker
        is present, rounds that open later begin with it, too."""
        self._elastic_workers.pop(notice.name, None)
        if notice.kind == "joined":
            self._elastic_workers[notice.name] = notice
        await self._put_in_all(ELASTIC_WORKERS, notice)

    async def close_stage(self, stage: Stage[Any], key: RoundKey) -> None:
        """End a stage, whose producer is done; may be called twice, or in a round that is over."""
        if key in self._open:
            self._open[key].channels[stage].closed = True
            await self._wake()

    async def abort(self, reason: str) -> None:
        """Abort all open rounds: from now on every put and take in them raises RoundAborted, and so
        do those that wait already. The first reason is kept."""
        for open_round in self._open.values():
            open_round.aborted = open_round.aborted or reason
        await self._wake()

    async def _wait(
        self,
        stage: Stage[Any],
        key: RoundKey,
        ready: Callable[[_Channel], bool],
        wait_s: float,
        what: str,
    ) -> _Channel | None:
        """The stage once it is ready; None if its round is over."""
        is_over = key in self._over or self._is_before_all(key)
        if not is_over and key not in self._open:
            rounds = ", ".join(map(str, self._open)) or "none"
            raise ValueError(
                f"round {key} must be opened before it is used, open are: {rounds}; call open_round"
            )

        def ends() -> bool:
            found = self._open.get(key)
            return found is None or found.aborted is not None or ready(found.channels[stage])

        async with self._changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(ends)
            except TimeoutError as error:
                raise TimeoutError(
                    f"waited {wait_s:.0f} s for {what}; the buffer holds {self._lengths([key])}"
                ) from error
        found = self._open.get(key)
        if found is not None and found.aborted is not None:
            raise RoundAborted(found.aborted)
        return None if found is None else found.channels[stage]

    async def _put_in_all(self, stage: Stage[Any], item: object) -> None:
        for open_round in self._open.values():
            open_round.channels[stage].items.append(item)
        await self._wake()

    def _is_before_all(self, key: RoundKey) -> bool:
        return bool(self._open) and key < min(self._open)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _lengths(self, keys: Iterable[RoundKey]) -> dict[str, int]:
        """Items by stage, those of these rounds together."""
        channels = [self._open[key].channels for key in keys if key in self._open]
        return {stage.name: sum(len(each[stage].items) for each in channels) for stage in STAGES}
