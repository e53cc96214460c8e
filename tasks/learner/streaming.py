"""Gradients while the round still runs: whole groups to the ranks whose devices are free, the rest to all ranks at its end.

    accepted groups ──▶ waiting ──▶ rows for freed ranks ─┐ (the rest generate)
    round closed:       waiting ──▶ balanced over all ranks ─┴─▶ sums on every rank ─▶ one reduction, one update

Exact by construction: a rank adds sums of losses, gradients and normalisers, and nothing is divided before the reduction (DESIGN,
invariant 4). Which group went where depends on timing, and with it the last bits of the sums; so the split is kept as a record and
a replayed step follows it call by call. Leaves out devices and processes: a rank is whatever accumulates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from artifacts.records import Group
from tasks.learner.packing import balance, is_flat, predicted_cost
from tasks.learner.reports import AccumulateReport


class GradientRank(Protocol):
    """A learner rank as far as accumulation is concerned; one call at a time."""

    async def accumulate(self, groups: tuple[Group, ...]) -> AccumulateReport:
        """Add the gradients of these groups to what the rank has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The groups of one call to one rank."""

    rank: int  # from 0
    prompt_ids: tuple[str, ...]  # their prompts, in the order given


Split = tuple[Share, ...]  # all calls of a step; those of one rank in the order made


class StreamedAccumulation:
    """One step's gradients. `offer` and `free` as the round goes on, `finish` when it is closed; inside the task group given."""

    def __init__(self, ranks: Sequence[GradientRank], tasks: asyncio.TaskGroup, row_tokens: int, flat_costs: bool) -> None:
        """`row_tokens`: a freed rank gets groups of about so many tokens a call. `flat_costs`: see `packing.balance`."""
        self._ranks, self._tasks = tuple(ranks), tasks
        self._row_tokens, self._flat_costs = row_tokens, flat_costs
        self._waiting: list[Group] = []
        self._flat: list[Group] = []
        self._changed = asyncio.Condition()
        self._is_closed = False
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._calls: list[Share] = []
        self._loads = [0.0] * len(self._ranks)  # predicted cost of what a rank is busy with
        self._reports = [AccumulateReport()] * len(self._ranks)
        self.num_streamed = 0  # groups that were trained before the round was closed

    async def offer(self, groups: Sequence[Group]) -> None:
        """Accepted groups. Those without a gradient wait for the end: they only add to the normaliser."""
        for group in groups:
            (self._flat if is_flat(group) and not self._flat_costs else self._waiting).append(group)
        await self._wake()

    def free(self, rank: int) -> None:
        """This rank's device has nothing else to do: from now on it takes groups as they come."""
        if rank not in self._workers:
            self._workers[rank] = self._tasks.create_task(self._work(rank))

    async def finish(self, record: Callable[[Split], Awaitable[None]]) -> tuple[AccumulateReport, ...]:
        """Deal what is left to all ranks, given what they are still busy with; the reports by rank.

        The split is final, and recorded, before the last calls are made.
        """
        self._is_closed = True
        self.num_streamed = sum(len(share.prompt_ids) for share in self._calls)
        rest = balance((*self._waiting, *self._flat), len(self._ranks), flat_costs=self._flat_costs, loads=self._loads)
        await record((*self._calls, *_shares(rest)))
        await self._wake()
        await asyncio.gather(*(self._end(rank, groups) for rank, groups in enumerate(rest)))
        return tuple(self._reports)

    async def _work(self, rank: int) -> None:
        while row := await self._next_row():
            await self._accumulate(rank, row)

    async def _next_row(self) -> tuple[Group, ...]:
        """The oldest waiting groups that fill a row, at least one; nothing when the round is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._is_closed)
        if self._is_closed:
            return ()
        row: list[Group] = []
        while self._waiting and (not row or sum(map(_num_tokens, row)) + _num_tokens(self._waiting[0]) <= self._row_tokens):
            row.append(self._waiting.pop(0))
        return tuple(row)

    async def _end(self, rank: int, groups: tuple[Group, ...]) -> None:
        if rank in self._workers:
            await self._workers[rank]
        if groups:
            await self._accumulate(rank, groups)

    async def _accumulate(self, rank: int, groups: tuple[Group, ...]) -> None:
        if not self._is_closed:
            self._calls.append(_share(rank, groups))
        self._loads[rank] = predicted_cost(groups)
        self._reports[rank] += await self._ranks[rank].accumulate(groups)
        self._loads[rank] = 0.0

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def one_shot(groups: Sequence[Group], num_ranks: int, flat_costs: bool) -> Split:
    """The split of a round that freed no device; the same for the same groups in any order."""
    return _shares(balance(groups, num_ranks, flat_costs=flat_costs))


async def accumulate_split(ranks: Sequence[GradientRank], groups: Sequence[Group], split: Split) -> tuple[AccumulateReport, ...]:
    """Make exactly the calls of a recorded split; the reports by rank. ValueError when it is not a split of these groups."""
    by_id = {group.prompt.prompt_id: group for group in groups}
    named = [name for share in split for name in share.prompt_ids]
    if sorted(named) != sorted(by_id) or any(share.rank >= len(ranks) for share in split):
        raise ValueError(
            f"a recorded split must name each of the {len(by_id)} trained groups once, over {len(ranks)} ranks, got {len(named)} names "
            f"over {1 + max((share.rank for share in split), default=-1)}; resume with the number of learners the run was made with"
        )

    async def follow(rank: int) -> AccumulateReport:
        report = AccumulateReport()
        for share in split:
            if share.rank == rank:
                report += await ranks[rank].accumulate(tuple(by_id[name] for name in share.prompt_ids))
        return report

    return tuple(await asyncio.gather(*map(follow, range(len(ranks)))))


def _shares(parts: Sequence[tuple[Group, ...]]) -> Split:
    return tuple(_share(rank, groups) for rank, groups in enumerate(parts) if groups)


def _share(rank: int, groups: Sequence[Group]) -> Share:
    return Share(rank=rank, prompt_ids=tuple(group.prompt.prompt_id for group in groups))


def _num_tokens(group: Group) -> int:
    return len(group.prompt.token_ids) + sum(len(response.generated.token_ids) for response in group.responses)
