"""Which responses move to an engine that has less to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.balancing import (
    BalancingConfig,
    EngineLoad,
    MovableResponse,
    Move,
    Speeds,
    balance,
)

CONFIG = BalancingConfig(keep_running=0, threshold=0.0)


def load(
    engine: str,
    remaining: list[int],
    room: int | None = None,
    speed: float | None = None,
    visited: dict[int, frozenset[str]] | None = None,
) -> EngineLoad:
    responses = tuple(
        MovableResponse(
            response_id=f"{engine}:{place}",
            remaining_tokens=tokens,
            closed=(visited or {}).get(place, frozenset({engine})),
        )
        for place, tokens in enumerate(remaining)
    )
    return EngineLoad(
        engine=engine,
        remaining_tokens=sum(remaining),
        responses=responses,
        room=room,
        tokens_per_s=speed,
    )


def test_an_idle_engine_takes_half_of_what_runs_the_youngest_first() -> None:
    moves = balance(CONFIG, [load("a", [100, 90, 80, 70]), load("b", [])])
    assert moves == [
        Move(response_id="a:0", source="a", target="b"),
        Move(response_id="a:1", source="a", target="b"),
    ]


def test_an_engine_keeps_what_it_decodes_as_fast_as_one() -> None:
    config = CONFIG.model_copy(update={"keep_running": 4})
    assert balance(config, [load("a", [100] * 4), load("b", [])]) == []
    assert len(balance(config, [load("a", [100] * 6), load("b", [])])) == 2


def test_a_small_difference_is_not_worth_a_prefill() -> None:
    config = CONFIG.model_copy(update={"threshold": 0.5})
    assert balance(config, [load("a", [100] * 5), load("b", [100] * 3)]) == []
    assert len(balance(config, [load("a", [100] * 7), load("b", [100] * 3)])) == 1


def test_no_more_move_than_a_look_may_and_the_target_has_room_for() -> None:
    few = CONFIG.model_copy(update={"max_moves": 3})
    assert len(balance(few, [load("a", [100] * 20), load("b", [])])) == 3
    assert len(balance(CONFIG, [load("a", [100] * 20), load("b", [], room=2)])) == 2
    assert balance(CONFIG, [load("a", [100] * 20), load("b", [], room=0)]) == []


def test_a_faster_engine_takes_more() -> None:
    slow = balance(CONFIG, [load("a", [100] * 12, speed=10), load("b", [], speed=10)])
    fast = balance(CONFIG, [load("a", [100] * 12, speed=10), load("b", [], speed=50)])
    assert (len(slow), len(fast)) == (6, 10)


def test_an_engine_of_unknown_speed_is_as_fast_as_the_others() -> None:
    known = balance(CONFIG, [load("a", [100] * 12, speed=10), load("b", [], speed=10)])
    assert balance(CONFIG, [load("a", [100] * 12, speed=10), load("b", [])]) == known


def test_nothing_goes_back_to_where_it_was() -> None:
    visited = dict.fromkeys(range(10), frozenset({"a", "b"}))
    loads = [load("a", [100] * 10, visited=visited), load("b", []), load("c", [100] * 5)]
    moves = balance(CONFIG, loads)
    assert {(move.source, move.target) for move in moves} == {("a", "c"), ("c", "b")}


def test_it_may_be_switched_off() -> None:
    off = BalancingConfig(enabled=False)
    assert balance(off, [load("a", [100] * 20), load("b", [])]) == []


def moved(loads: list[EngineLoad], moves: list[Move], *, remembers: bool) -> list[EngineLoad]:
    """The loads after these moves; remembers: whether responses know where they were."""
    responses = {each.response_id: each for held in loads for each in held.responses}
    target_of = {move.response_id: move.target for move in moves}
    after = []
    for held in loads:
        stay = [each for each in held.responses if each.response_id not in target_of]
        come = [responses[name] for name, target in target_of.items() if target == held.engine]
        if remembers:
            come = [replace(each, closed=each.closed | {held.engine}) for each in come]
        gone = sum(each.remaining_tokens for each in held.responses) - sum(
            each.remaining_tokens for each in stay
        )
        after.append(
            replace(
                held,
                responses=(*stay, *come),
                remaining_tokens=held.remaining_tokens
                - gone
                + sum(each.remaining_tokens for each in come),
                room=None
                if held.room is None
                else held.room + len(held.responses) - len(stay) - len(come),
            )
        )
    return after


def longest_s(loads: list[EngineLoad]) -> float:
    return max(held.remaining_tokens / (held.tokens_per_s or 1.0) for held in loads)


@st.composite
def loaded(draw: st.DrawFn) -> list[EngineLoad]:
    speeds = draw(st.sampled_from([None, 10.0]))
    return [
        load(
            f"engine-{place}",
            draw(st.lists(st.integers(1, 500), max_size=12)),
            room=draw(st.sampled_from([None, None, 0, 3])),
            speed=speeds and draw(st.sampled_from([5.0, 10.0, 40.0])),
        )
        for place in range(draw(st.integers(1, 4)))
    ]


configs = st.builds(
    BalancingConfig,
    threshold=st.sampled_from([0.0, 0.25, 1.0]),
    keep_running=st.integers(0, 4),
    max_moves=st.sampled_from([1, 4, 64]),
)


@pytest.mark.parametrize("remembers", [True, False])
@given(loaded(), configs)
def test_look_after_look_nothing_moves_forth_and_back(
    remembers: bool, loads: list[EngineLoad], config: BalancingConfig
) -> None:
    """Even if responses forget where they were, as long as the loads stay; the busiest engine never
    has more to do for it."""
    for _ in range(200):
        moves = balance(config, loads)
        if not moves:
            return
        assert len({move.response_id for move in moves}) == len(moves) <= config.max_moves
        after = moved(loads, moves, remembers=remembers)
        assert longest_s(after) <= longest_s(loads)
        assert all(held.room is None or held.room >= 0 for held in after)
        loads = after
    raise AssertionError("something moves for ever")


@given(st.data(), st.integers(2, 4))
def test_a_response_moves_at_most_once_to_each_engine_whatever_the_loads_do(
    data: st.DataObject, num_engines: int
) -> None:
    """Speeds and remaining tokens are drawn anew for every look."""
    loads = [load("engine-0", [100] * 6), *(load(f"engine-{n}", []) for n in range(1, num_engines))]
    num_moves = 0
    for _ in range(60):
        loads = [
            replace(held, tokens_per_s=data.draw(st.sampled_from([1.0, 10.0, 100.0])))
            for held in loads
        ]
        moves = balance(CONFIG, loads)
        num_moves += len(moves)
        loads = moved(loads, moves, remembers=True)
    assert num_moves <= 6 * (num_engines - 1)


def test_a_speed_is_measured_only_while_an_engine_has_enough_to_do() -> None:
    speeds = Speeds(keep_running=4)
    speeds.measure("a", 8, 0, 0.0)
    assert speeds.of("a") is None
    speeds.measure("a", 8, 500, 10.0)
    assert speeds.of("a") == 50
    speeds.measure("a", 2, 520, 20.0)
    speeds.measure("a", 8, 540, 30.0)
    speeds.measure("a", 8, 740, 40.0)
    assert speeds.of("a") == 50
    speeds.measure("a", 8, 1740, 50.0)
    assert speeds.of("a") == 100
