"""The split of a step's responses over the ranks, recorded so that a replay makes the same calls.

dealt, live ─▶ Split ─▶ splits/00007.json ─▶ accumulate_split ─▶ the same sums, bit by bit
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from artifacts import layout
from artifacts.journal import PLAY_AGAIN
from artifacts.records import Group
from artifacts.store import Store
from tasks.learner.advantage import Moments
from tasks.learner.dealing import GroupPart, balance, mini_batches
from tasks.learner.reports import AccumulateReport


class GradientRank(Protocol):
    """A learner rank that accumulates gradients; takes one call at a time."""

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        """Add the gradients of these parts to the rank's sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The parts that one call gives to one rank."""

    rank: int  # from 0
    # in the order given: a group's prompt id, and places of the responses trained
    parts: tuple[tuple[str, tuple[int, ...]], ...]


Split = tuple[Share, ...]  # all calls of a step; those of one rank in the order made


def one_shot(groups: Sequence[Group], num_ranks: int, flat_costs: bool) -> Split:
    """The split of a round that freed no device; independent of the order of the groups."""
    return shares_of(balance(groups, num_ranks, flat_costs=flat_costs))


def in_mini_batches(
    groups: Sequence[Group], step: int, number: int, num_ranks: int, flat_costs: bool
) -> Split:
    """The split of a step of several updates: a call a rank and mini-batch, even if empty."""
    return tuple(
        share_of(rank, parts)
        for mini_batch in mini_batches(groups, step, number)
        for rank, parts in enumerate(balance(mini_batch, num_ranks, flat_costs=flat_costs))
    )


async def accumulate_split(
    ranks: Sequence[GradientRank],
    groups: Sequence[Group],
    split: Split,
    moments: Moments | None = None,
) -> tuple[AccumulateReport, ...]:
    """Make exactly the calls of a recorded split, and one empty call to each rank without any,
    because ranks in step must all take part (`trainer`). Returns each rank's report, by rank.
    Raises ValueError if the split is not one of these groups. `moments`: of the step's rewards, for
    advantages that need them."""
    by_id = {group.prompt.prompt_id: group for group in groups}
    named = sorted(
        (name, place) for share in split for name, places in share.parts for place in places
    )
    trained = sorted(
        (name, place) for name, group in by_id.items() for place in range(len(group.responses))
    )
    num_ranks = 1 + max((share.rank for share in split), default=-1)
    if named != trained or num_ranks > len(ranks):
        raise ValueError(
            f"a recorded split must name each of the {len(trained)} trained responses once, over"
            f" {len(ranks)} ranks, got {len(named)} names over {num_ranks}; resume with the number"
            " of learners the run was made with"
        )

    async def follow(rank: int) -> AccumulateReport:
        report = AccumulateReport()
        own = [share.parts for share in split if share.rank == rank]
        for named_parts in own or [()]:
            parts = (
                GroupPart(group=by_id[name], places=places, moments=moments)
                for name, places in named_parts
            )
            report += await ranks[rank].accumulate(tuple(parts))
        return report

    return tuple(await asyncio.gather(*map(follow, range(len(ranks)))))


def share_of(rank: int, parts: Sequence[GroupPart]) -> Share:
    """The record of one call."""
    return Share(
        rank=rank, parts=tuple((part.group.prompt.prompt_id, part.places) for part in parts)
    )


def shares_of(dealt: Sequence[tuple[GroupPart, ...]]) -> Split:
    """The record of one call to each rank that gets any part."""
    return tuple(share_of(rank, parts) for rank, parts in enumerate(dealt) if parts)


def write_split(store: Store, step: int, split: Split) -> None:
    """Record the split of the step's groups."""
    shares = [[share.rank, share.parts] for share in split]
    store.keep(layout.step_file(layout.SPLITS, step), json.dumps({"shares": shares}).encode())


def read_split(store: Store, step: int) -> Split | None:
    """Read the recorded split of the step's groups; None if there is none."""
    name = layout.step_file(layout.SPLITS, step)
    if not store.exists(name):
        return None

    def parse(data: bytes) -> Split:
        kept = json.loads(data)
        shares = kept["shares"] if isinstance(kept, dict) else kept  # earlier versions: these alone
        return tuple(
            Share(rank=rank, parts=tuple((prompt_id, tuple(places)) for prompt_id, places in parts))
            for rank, parts in shares
        )

    return store.parsed(name, parse, PLAY_AGAIN)
