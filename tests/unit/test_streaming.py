"""Groups to freed ranks while the round runs, the rest balanced at its end; and a recorded split
followed call by call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_factories import make_group, random_groups

from artifacts.records import Group
from artifacts.store import Store
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.dealing import GroupPart, as_part, balance, has_equal_rewards, predicted_cost
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import (
    Share,
    Split,
    accumulate_split,
    one_shot,
    read_split,
    share_of,
    write_split,
)
from tasks.learner.streaming import StreamedAccumulation

ROW_TOKENS = 60
ALL = (0, 1, 2, 3)


class TimedRank:
    """A rank that takes a second of virtual time per hundred units of predicted cost, and remembers
    its calls."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.calls: list[tuple[float, tuple[GroupPart, ...]]] = []  # begun at, given
        self.is_busy = False

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        assert not self.is_busy, "a rank takes one call at a time"
        self.is_busy = True
        self.calls.append((asyncio.get_running_loop().time(), parts))
        await asyncio.sleep(predicted_cost(parts) / 100)
        self.is_busy = False
        return AccumulateReport(num_responses=sum(len(part.places) for part in parts))

    @property
    def shares(self) -> list[Share]:
        return [share_of(self.rank, parts) for _, parts in self.calls if parts]


class FailingRank(TimedRank):
    """Is lost at its first call."""

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        raise ConnectionError("the rank is gone")


async def streamed(
    ranks: Sequence[TimedRank],
    groups: Sequence[Group],
    freed: dict[int, float],
    every_s: float = 1.0,
) -> tuple[tuple[AccumulateReport, ...], Split, int]:
    """A group every so often; ranks are freed at the times given; the round is closed after the
    last group."""
    recorded: list[Split] = []

    async def record(split: Split) -> None:
        recorded.append(split)

    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(ranks, tasks, len(groups), ROW_TOKENS, flat_costs=False)
        for rank, when in freed.items():
            loop.call_at(when, accumulation.free, rank)
        for group in groups:
            await asyncio.sleep(every_s)
            await accumulation.offer([group])
        reports = await accumulation.finish(record)
    (split,) = recorded
    return reports, split, accumulation.num_streamed


def costly_groups(count: int, seed: int = 0) -> list[Group]:
    """Groups with a gradient, of very different lengths."""
    made = [
        group
        for one in range(seed, seed + 50)
        for group in random_groups(one, num_groups=5)
        if not has_equal_rewards(group)
    ]
    return [
        make_group(
            group.prompt.token_ids,
            [one.generated.token_ids for one in group.responses],
            [one.score.reward if one.score else None for one in group.responses],
            prompt_id=f"0/{place}",
        )
        for place, group in enumerate(made[:count])
    ]


def names(shares: Sequence[Share]) -> set[str]:
    return {name for share in shares for name, _ in share.parts}


def test_without_a_freed_rank_the_split_is_the_one_shot_split() -> None:
    ranks, groups = [TimedRank(0), TimedRank(1)], costly_groups(6)
    _, split, num_streamed = run_virtual(streamed(ranks, groups, freed={}))
    assert num_streamed == 0
    assert split == one_shot(groups, 2, flat_costs=False)
    assert [share for rank in ranks for share in rank.shares] == list(split)


def test_a_freed_rank_trains_while_the_rest_is_still_coming() -> None:
    ranks, groups = [TimedRank(0), TimedRank(1)], costly_groups(8)
    _, split, num_streamed = run_virtual(streamed(ranks, groups, freed={1: 2.5}))
    early = [
        share
        for share in split
        if share in ranks[1].shares and ranks[1].calls[ranks[1].shares.index(share)][0] < 8
    ]
    assert num_streamed == len(names(early)) > 0
    assert ranks[0].calls[0][0] == 8.0  # the other begins when the round is closed
    assert ranks[1].calls[0][0] == 2.5


@pytest.mark.parametrize(
    ("num_groups", "at_once"),
    [(12, 3), (24, 5)],
    ids=["a quarter of its share", "a row of sixty tokens"],
)
def test_a_freed_rank_gets_rows_but_never_much_of_its_share_at_once(
    num_groups: int, at_once: int
) -> None:
    groups = [
        make_group((1, 2), [(3,) * 5, (4,) * 5], [0.0, 1.0], prompt_id=f"0/{place}")
        for place in range(num_groups)
    ]  # 12 tokens each
    ranks = [TimedRank(0)]
    run_virtual(streamed(ranks, groups, freed={0: num_groups - 1.5}))
    assert [len(share.parts) for share in ranks[0].shares][:2] == [at_once, at_once]
    assert sum(len(share.parts) for share in ranks[0].shares) == num_groups


def test_groups_without_a_gradient_wait_for_the_end() -> None:
    flat = make_group((1, 2), [(3,), (4,)], [1.0, 1.0], prompt_id="0/flat")
    ranks = [TimedRank(0), TimedRank(1)]
    reports, split, num_streamed = run_virtual(streamed(ranks, [flat], freed={1: 0.0}, every_s=5.0))
    assert num_streamed == 0
    assert [share.parts for share in split] == [(("0/flat", (0, 1)),)]
    assert sum(report.num_responses for report in reports) == 2


def test_a_rank_without_a_share_is_called_once_with_nothing() -> None:
    """Ranks in step compute only all together: none may be passed over, live or in a replay."""
    flat = make_group((1, 2), [(3,), (4,)], [1.0, 1.0], prompt_id="0/flat")
    ranks, again = ([TimedRank(rank) for rank in range(3)] for _ in range(2))
    _, split, _ = run_virtual(streamed(ranks, [flat], freed={}))
    run_virtual(accumulate_split(again, [flat], split))
    for played in (ranks, again):
        calls = [[parts for _, parts in rank.calls] for rank in played]
        assert calls == [[(as_part(flat),)], [()], [()]]


def test_a_lost_rank_fails_the_step() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(streamed([TimedRank(0), FailingRank(1)], costly_groups(4), freed={1: 0.0}))
    assert caught.group_contains(ConnectionError)


def test_the_end_is_balanced_by_what_ranks_are_busy_with() -> None:
    groups = costly_groups(9)
    cost = predicted_cost(list(map(as_part, groups)))
    even, busy = balance(groups, 2), balance(groups, 2, loads=[cost, 0.0])
    assert abs(predicted_cost(even[0]) - predicted_cost(even[1])) < cost / 4
    assert busy[1] == tuple(
        sorted(map(as_part, groups), key=lambda part: part.group.prompt.token_ids)
    )


@settings(max_examples=60)
@given(
    st.integers(0, 20),
    st.integers(1, 4),
    st.dictionaries(st.integers(0, 3), st.floats(0, 15), max_size=4),
    st.floats(0.01, 3),
)
def test_every_group_is_given_once_and_the_record_is_what_happened(
    seed: int, num_ranks: int, freed: dict[int, float], every_s: float
) -> None:
    groups = [*costly_groups(7, seed), *random_flat(3)]
    ranks = [TimedRank(rank) for rank in range(num_ranks)]
    here = {rank: when for rank, when in freed.items() if rank < num_ranks}
    reports, split, num_streamed = run_virtual(streamed(ranks, groups, here, every_s))
    trained = sorted(
        (name, place) for share in split for name, places in share.parts for place in places
    )
    assert trained == sorted(
        (group.prompt.prompt_id, place) for group in groups for place in range(len(group.responses))
    )
    for rank in ranks:
        assert rank.shares == [share for share in split if share.rank == rank.rank]
    assert sum(report.num_responses for report in reports) == sum(
        len(group.responses) for group in groups
    )
    assert num_streamed <= len(groups)

    again = [TimedRank(rank) for rank in range(num_ranks)]
    run_virtual(accumulate_split(again, groups[::-1], split))
    assert [rank.shares for rank in again] == [rank.shares for rank in ranks]


def random_flat(count: int) -> list[Group]:
    return [
        make_group((1, place), [(3,), (4, 5)], [1.0, 1.0], prompt_id=f"1/{place}")
        for place in range(count)
    ]


@pytest.mark.parametrize(
    "split",
    [
        (Share(rank=0, parts=(("0/0", ALL),)),),
        (Share(rank=0, parts=(("0/0", ALL), ("0/1", ALL[1:]))),),
        (Share(rank=0, parts=(("0/0", ALL), ("0/1", ALL))), Share(rank=0, parts=(("0/1", (0,)),))),
        (Share(rank=2, parts=(("0/0", ALL), ("0/1", ALL))),),
    ],
)
def test_a_split_of_other_groups_or_ranks_is_refused(split: Split) -> None:
    with pytest.raises(
        ValueError, match="must name each of the 8 trained responses once, over 2 ranks"
    ):
        run_virtual(accumulate_split([TimedRank(0), TimedRank(1)], costly_groups(2), split))


def test_a_split_is_kept_and_read_back() -> None:
    store = Store.open("memory://splits")
    split = (
        Share(rank=1, parts=(("0/3", (0, 1)), ("0/1", (2,)))),
        Share(rank=0, parts=(("0/1", (0, 1, 3)),)),
    )
    assert read_split(store, 7) is None
    write_split(store, 7, split)
    assert read_split(store, 7) == split
