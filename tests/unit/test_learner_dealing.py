"""The balance over ranks: every response once, whole groups where that is fair, cut where one
outweighs the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_factories import make_group, random_groups

from artifacts.records import Group
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.dealing import (
    CUT_GAIN,
    GroupPart,
    as_part,
    balance,
    has_equal_rewards,
    predicted_cost,
    rows_of,
)
from tasks.learner.samples import TokenMean, training_set


def dealt_places(dealt: tuple[tuple[GroupPart, ...], ...]) -> list[tuple[str, int]]:
    return sorted(
        (part.group.prompt.prompt_id, place)
        for parts in dealt
        for part in parts
        for place in part.places
    )


def all_places(groups: tuple[Group, ...]) -> list[tuple[str, int]]:
    return sorted(
        (group.prompt.prompt_id, place) for group in groups for place in range(len(group.responses))
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_every_response_is_dealt_once_whatever_the_arrival(num_ranks: int) -> None:
    groups = random_groups(1, num_groups=12)
    dealt = balance(groups, num_ranks)
    assert len(dealt) == num_ranks
    assert dealt_places(dealt) == all_places(groups)
    assert balance(tuple(reversed(groups)), num_ranks) == dealt


def test_a_family_stays_together_where_that_is_cheap() -> None:
    families = [tuple(range(200)), tuple(range(300, 500))]
    groups = [
        make_group((*families[i % 2], 600 + i), [(1, 2)] * 2, [0.0, 1.0], prompt_id=f"0/{i}")
        for i in range(4)
    ]
    dealt = balance(groups, 2)
    assert [len({part.group.prompt.token_ids[0] for part in parts}) for parts in dealt] == [1, 1]


def test_long_groups_are_spread() -> None:
    groups = [
        make_group((i,), [(1,) * (100 if i < 2 else 10)] * 2, [0.0, 1.0], prompt_id=f"0/{i}")
        for i in range(6)
    ]
    longest = [
        max(len(r.generated.token_ids) for part in parts for r in part.group.responses)
        for parts in balance(groups, 2)
    ]
    assert longest == [100, 100]


def test_groups_that_are_not_computed_do_not_count() -> None:
    mixed = [make_group((i,), [(1,) * 50] * 2, [0.0, 1.0], prompt_id=f"0/{i}") for i in range(4)]
    flat = [
        make_group((10 + i,), [(1,) * 200] * 2, [1.0, 1.0], prompt_id=f"0/{10 + i}")
        for i in range(4)
    ]
    assert [
        sum(part.group in mixed for part in parts) for parts in balance([*flat, *mixed], 2)
    ] == [2, 2]
    assert [
        sum(part.group in flat for part in parts)
        for parts in balance([*flat, *mixed], 2, flat_costs=True)
    ] == [2, 2]


def test_there_must_be_a_rank() -> None:
    with pytest.raises(ValueError, match="num_ranks"):
        balance((), 0)


def test_a_group_that_outweighs_the_rest_is_cut() -> None:
    long = make_group(
        (1, 2),
        [(3,) * 100, (4,) * 100, (5,) * 100, (6,) * 100],
        [0.0, 1.0, 0.0, 1.0],
        prompt_id="0/long",
    )
    short = make_group((7,), [(3,), (4,)], [0.0, 1.0], prompt_id="0/short")
    dealt = balance([long, short], 2)
    assert [sum(len(part.places) for part in parts if part.group == long) for parts in dealt] == [
        2,
        2,
    ]
    assert dealt_places(dealt) == all_places((long, short))


def test_groups_stay_whole_where_a_cut_gains_little() -> None:
    groups = [
        make_group((i,), [(1,) * 40] * 4, [0.0, 1.0, 0.0, 1.0], prompt_id=f"0/{i}")
        for i in range(8)
    ]
    assert all(part == as_part(part.group) for parts in balance(groups, 2) for part in parts)


def test_a_long_prompt_is_not_computed_twice_for_short_answers() -> None:
    group = make_group(tuple(range(500)), [(3,), (4,)], [0.0, 1.0])
    assert sorted(map(len, balance([group], 2))) == [0, 1]


@given(st.integers(0, 500), st.integers(1, 5), st.lists(st.floats(0, 300), min_size=5, max_size=5))
def test_the_dearest_rank_is_at_most_a_unit_above_a_fair_share(
    seed: int, num_ranks: int, busy: list[float]
) -> None:
    groups = random_groups(seed, num_groups=9)
    loads = busy[:num_ranks]
    dealt = balance(groups, num_ranks, loads=loads)
    assert dealt_places(dealt) == all_places(groups)
    costly = [[part for part in parts if not has_equal_rewards(part.group)] for parts in dealt]
    ends = [load + predicted_cost(parts) for load, parts in zip(loads, costly, strict=True)]
    units = [predicted_cost([as_part(group)]) for group in groups if not has_equal_rewards(group)]
    fair = (sum(loads) + sum(units)) / num_ranks
    assert max(ends) <= max([*loads, fair + max(units, default=0.0)]) / CUT_GAIN + 1e-6


@given(st.integers(0, 500), st.integers(1, 200))
def test_rows_hold_every_response_once_and_no_more_than_they_have_room_for(
    seed: int, row_tokens: int
) -> None:
    for group in random_groups(seed):
        rows = rows_of(group, row_tokens)
        assert [place for part in rows for place in part.places] == list(
            range(len(group.responses))
        )
        for part in rows:
            held = len(group.prompt.token_ids) + sum(
                len(group.responses[place].generated.token_ids) for place in part.places
            )
            assert held <= row_tokens or len(part.places) == 1


@given(st.integers(0, 500), st.integers(1, 60))
def test_the_parts_of_a_group_have_its_advantages_and_add_up_to_it(
    seed: int, row_tokens: int
) -> None:
    groups = random_groups(seed)
    parts = [part for group in groups for part in rows_of(group, row_tokens)]
    together = training_set(groups, GrpoAdvantage(), TokenMean())
    apart = [training_set([part], GrpoAdvantage(), TokenMean()) for part in parts]
    assert tuple(sample for one in apart for sample in one.samples) == together.samples
    for name in ("normaliser", "num_groups", "num_groups_flat", "num_responses_excluded"):
        assert sum(getattr(one, name) for one in apart) == pytest.approx(getattr(together, name)), (
            name
        )
