"""Computes gradients while the round still runs: accepted groups go to ranks whose devices are
free, the rest to all ranks when the round ends.

    accepted groups ─▶ waiting ─▶ rows for freed ranks ───┐ (the rest generate)
    round closed:      waiting ─▶ balanced over all ranks ┴▶ sums on every rank
                                                             ─▶ one reduction, one update

Exact by construction: nothing is divided before the reduction (invariant 4, docs/architecture.md).
Which rank gets which group depends on timing, and the last bits of the sums depend on it; so the
split is recorded, and a replayed step follows it call by call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from artifacts.records import Group, num_computed
from tasks.learner.dealing import (
    GroupPart,
    as_part,
    balance,
    has_equal_rewards,
    predicted_cost,
    rows_of,
)
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import GradientRank, Share, Split, share_of, shares_of

# a freed rank gets its share of a step in at least this many calls, so that no call still runs long
# after the round has ended
PORTIONS = 4


class StreamedAccumulation:
    """Accumulates one step's gradients: call `offer` and `free` while the round runs, `finish` when
    it is closed; all inside the given task group."""

    def __init__(
        self,
        ranks: Sequence[GradientRank],
        tasks: asyncio.TaskGroup,
        num_groups: int,
        row_tokens: int,
        flat_costs: bool,
    ) -> None:
        """row_tokens: of a full row, the most that a rank gets in one call."""
        self._ranks, self._tasks = tuple(ranks), tasks
        self._row_tokens, self._flat_costs = row_tokens, flat_costs
        self._row_parts = max(1, num_groups // (PORTIONS * len(self._ranks)))
        self._waiting: list[GroupPart] = []
        self._flat: list[GroupPart] = []
        self._changed = asyncio.Condition()
        self._is_closed = False
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._calls: list[Share] = []  # calls made before the round was closed
        self._loads = [0.0] * len(self._ranks)  # predicted cost of the call that a rank works on
        self._reports = [AccumulateReport()] * len(self._ranks)
        self.num_streamed = 0  # groups of which something was trained before the round was closed

    async def offer(self, groups: Sequence[Group]) -> None:
        """Take accepted groups; those without a gradient only add to the normaliser, at the end."""
        for group in groups:
            if has_equal_rewards(group) and not self._flat_costs:
                self._flat.append(as_part(group))
            else:
                self._waiting += rows_of(group, self._row_tokens)
        await self._wake()

    def free(self, rank: int) -> None:
        """Let this rank, whose device is free, train groups as they come."""
        if rank not in self._workers:
            self._workers[rank] = self._tasks.create_task(self._work(rank))

    async def finish(
        self, record: Callable[[Split], Awaitable[None]]
    ) -> tuple[AccumulateReport, ...]:
        """Deal the remaining groups to all ranks, considering their unfinished calls. Returns each
        rank's report, by rank. The split is final before the last calls are made, and recorded
        beside them. A rank that was never freed gets one call, even if an empty one, because ranks
        in step must all take part (`trainer`)."""
        self._is_closed = True
        self.num_streamed = len({name for share in self._calls for name, _ in share.parts})
        left = balance(
            (*self._waiting, *self._flat),
            len(self._ranks),
            flat_costs=self._flat_costs,
            loads=self._loads,
        )
        split = (*self._calls, *shares_of(left))
        await self._wake()

        async def end(rank: int, parts: tuple[GroupPart, ...]) -> None:
            if rank in self._workers:
                await self._workers[rank]
            if parts or rank not in self._workers:
                await self._accumulate(rank, parts)

        ends = [self._tasks.create_task(end(rank, parts)) for rank, parts in enumerate(left)]
        await record(split)
        await asyncio.gather(*ends)
        return tuple(self._reports)

    async def _work(self, rank: int) -> None:
        while row := await self._next_row():
            await self._accumulate(rank, row)

    async def _next_row(self) -> tuple[GroupPart, ...]:
        """The oldest waiting parts that fill a row or a portion; empty when the round is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._is_closed)
        if self._is_closed:
            return ()
        row: list[GroupPart] = []
        while self._waiting and len(row) < self._row_parts:
            if row and sum(map(tokens_of, row)) + tokens_of(self._waiting[0]) > self._row_tokens:
                break
            row.append(self._waiting.pop(0))
        return tuple(row)

    async def _accumulate(self, rank: int, parts: tuple[GroupPart, ...]) -> None:
        if not self._is_closed:
            self._calls.append(share_of(rank, parts))
        self._loads[rank] = predicted_cost(parts)
        self._reports[rank] += await self._ranks[rank].accumulate(parts)
        self._loads[rank] = 0.0

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def tokens_of(part: GroupPart) -> int:
    """The tokens of a part that go through a rank's layers, its prompt once."""
    return len(part.group.prompt.token_ids) + sum(
        num_computed(part.group.responses[place].generated) for place in part.places
    )
