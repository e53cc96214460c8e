"""The sample buffer: bounded, ordered, closed to other rounds, and never a wait without an end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.run.sample_buffer import (
    GENERATED,
    GROUPED,
    PUBLISHED,
    SCORED,
    STAGES,
    RoundAborted,
    RoundKey,
    SampleBuffer,
)

NAMES = [stage.name for stage in STAGES]
KEYS = [RoundKey(number) for number in range(5)]


async def opened(capacity: int = 4, key: int = 1) -> SampleBuffer:
    buffer = SampleBuffer(dict.fromkeys(STAGES, capacity))
    await buffer.open_round(KEYS[key])
    return buffer


async def settle() -> None:
    """Let every task that can run reach its next wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_items_come_out_in_order_and_at_most_as_many_as_asked() -> None:
    buffer = await opened()
    assert await buffer.put(GENERATED, KEYS[1], ("a", "b", "c"), 1.0)
    assert await buffer.take(GENERATED, KEYS[1], 2, 1.0) == (["a", "b"], False)
    assert await buffer.take(GENERATED, KEYS[1], 2, 1.0) == (["c"], False)


async def test_stages_do_not_mix() -> None:
    buffer = await opened()
    await buffer.put(GENERATED, KEYS[1], ("response",), 1.0)
    await buffer.put(SCORED, KEYS[1], ("score",), 1.0)
    await buffer.put(GROUPED, KEYS[1], ("group",), 1.0)
    assert (await buffer.take(GROUPED, KEYS[1], 9, 1.0))[0] == ["group"]
    assert (await buffer.take(SCORED, KEYS[1], 9, 1.0))[0] == ["score"]
    assert (await buffer.take(GENERATED, KEYS[1], 9, 1.0))[0] == ["response"]


async def test_a_take_waits_for_the_first_item() -> None:
    buffer = await opened()
    taking = asyncio.create_task(buffer.take(SCORED, KEYS[1], 8, 5.0))
    await settle()
    assert not taking.done()
    await buffer.put(SCORED, KEYS[1], ("s",), 1.0)
    assert (await taking)[0] == ["s"]


async def test_a_take_ends_empty_and_open_when_nothing_comes() -> None:
    buffer = await opened()
    assert await buffer.take(GROUPED, KEYS[1], 1, 0.0) == ([], False)


async def test_closing_ends_waits_after_the_last_item() -> None:
    buffer = await opened()
    await buffer.put(GENERATED, KEYS[1], ("last",), 1.0)
    await buffer.close_stage(GENERATED, KEYS[1])
    assert await buffer.take(GENERATED, KEYS[1], 8, 1.0) == (["last"], True)
    assert await buffer.take(GENERATED, KEYS[1], 8, 1.0) == ([], True)
    with pytest.raises(RuntimeError, match="closed; its producer must put before it closes"):
        await buffer.put(GENERATED, KEYS[1], ("too late",), 1.0)


async def test_closing_wakes_a_consumer_that_waits() -> None:
    buffer = await opened()
    taking = asyncio.create_task(buffer.take(GENERATED, KEYS[1], 8, 5.0))
    await settle()
    await buffer.close_stage(GENERATED, KEYS[1])
    assert await taking == ([], True)


async def test_a_full_stage_holds_its_producer_back() -> None:
    buffer = await opened(capacity=2)
    await buffer.put(GENERATED, KEYS[1], ("a", "b"), 1.0)
    putting = asyncio.create_task(buffer.put(GENERATED, KEYS[1], ("c",), 5.0))
    await settle()
    assert not putting.done()
    await buffer.take(GENERATED, KEYS[1], 1, 1.0)
    assert await putting
    assert (await buffer.take(GENERATED, KEYS[1], 9, 1.0))[0] == ["b", "c"]


async def test_a_put_that_finds_no_room_says_what_it_waited_for_and_puts_nothing() -> None:
    buffer = await opened(capacity=1)
    await buffer.put(SCORED, KEYS[1], ("a",), 1.0)
    with pytest.raises(
        TimeoutError,
        match=r"room for 1 items of round 1 in 'scored'; the buffer holds .*'scored': 1",
    ):
        await buffer.put(SCORED, KEYS[1], ("b",), 0.01)
    assert (await buffer.take(SCORED, KEYS[1], 9, 1.0))[0] == ["a"]


async def test_abort_wakes_everyone_with_the_first_reason() -> None:
    buffer = await opened(capacity=1)
    await buffer.put(GROUPED, KEYS[1], ("full",), 1.0)
    waits = [
        asyncio.create_task(wait)
        for wait in (
            buffer.put(GROUPED, KEYS[1], ("g",), 5.0),
            buffer.take(SCORED, KEYS[1], 1, 5.0),
            buffer.take(GENERATED, KEYS[1], 1, 5.0),
        )
    ]
    await settle()
    await buffer.abort("engine-0 was lost")
    await buffer.abort("and then everything else")
    for wait in waits:
        with pytest.raises(RoundAborted, match="engine-0 was lost"):
            await wait
    with pytest.raises(RoundAborted):
        await buffer.take(GROUPED, KEYS[1], 1, 1.0)


async def test_a_new_round_drops_leftovers_and_ends_waits_of_the_old_one() -> None:
    buffer = await opened()
    await buffer.put(GENERATED, KEYS[1], ("left", "over"), 1.0)
    old = asyncio.create_task(buffer.take(SCORED, KEYS[1], 1, 5.0))
    await settle()
    dropped = await buffer.open_round(KEYS[2])
    assert dropped == {
        "generated": 2,
        "scored": 0,
        "grouped": 0,
        "published": 0,
        "elastic": 0,
    }
    assert await old == ([], True)
    assert await buffer.take(GENERATED, KEYS[2], 9, 0.0) == ([], False)


async def test_late_items_of_an_older_round_are_refused() -> None:
    buffer = await opened(key=3)
    assert not await buffer.put(GENERATED, KEYS[2], ("late", "later"), 1.0)
    await buffer.close_stage(GENERATED, KEYS[2])
    assert await buffer.take(GENERATED, KEYS[3], 1, 0.0) == ([], False)


async def test_an_abort_ends_with_its_round() -> None:
    buffer = await opened()
    await buffer.abort("lost")
    await buffer.open_round(KEYS[1])
    assert await buffer.put(SCORED, KEYS[1], ("again",), 1.0)


async def test_rounds_open_in_order_and_before_use() -> None:
    buffer = await opened(key=3)
    with pytest.raises(ValueError, match="rounds must open in order, got round 2 after round 3"):
        await buffer.open_round(KEYS[2])
    with pytest.raises(ValueError, match="round 4 must be opened before it is used"):
        await buffer.put(SCORED, KEYS[4], ("early",), 1.0)


async def test_rounds_that_overlap_have_stages_of_their_own() -> None:
    buffer = await opened(capacity=1)
    await buffer.put(GROUPED, KEYS[1], ("first",), 1.0)
    assert await buffer.open_round(KEYS[2], beside=(KEYS[1],)) == dict.fromkeys(NAMES, 0)
    await buffer.put(GROUPED, KEYS[2], (2,), 1.0)
    await buffer.close_stage(GROUPED, KEYS[1])
    assert (await buffer.take(GROUPED, KEYS[2], 9, 1.0)) == ([2], False)
    assert (await buffer.take(GROUPED, KEYS[1], 9, 1.0)) == (["first"], True)
    await buffer.open_round(KEYS[3], beside=(KEYS[2],))
    assert not await buffer.put(SCORED, KEYS[1], ("late",), 1.0)
    assert await buffer.put(SCORED, KEYS[2], ("in time",), 1.0)


async def test_a_round_that_is_over_is_turned_away_though_an_earlier_one_is_tried_again() -> None:
    buffer = await opened(key=1)
    await buffer.open_round(KEYS[3], beside=(KEYS[1],))
    await buffer.open_round(KEYS[2])
    assert not await buffer.put(SCORED, KEYS[3], ("of a lost attempt",), 1.0)
    assert (await buffer.take(SCORED, KEYS[3], 1, 0.0))[1]


async def test_an_abort_ends_every_open_round() -> None:
    buffer = await opened()
    await buffer.open_round(KEYS[2], beside=(KEYS[1],))
    await buffer.abort("engine-0 was lost")
    for key in KEYS[1:3]:
        with pytest.raises(RoundAborted, match="engine-0 was lost"):
            await buffer.take(SCORED, key, 1, 1.0)


async def test_a_version_is_announced_to_open_rounds_and_the_newest_to_later_ones() -> None:
    buffer = await opened()
    await buffer.announce(1)
    await buffer.open_round(KEYS[2], beside=(KEYS[1],))
    await buffer.announce(2)
    for key in KEYS[1:3]:
        assert (await buffer.take(PUBLISHED, key, 9, 0.0))[0] == [1, 2]
    await buffer.open_round(KEYS[3])
    assert (await buffer.take(PUBLISHED, KEYS[3], 9, 0.0))[0] == [2]


def test_every_stage_needs_a_capacity() -> None:
    with pytest.raises(ValueError, match="every stage must have a capacity"):
        SampleBuffer({GENERATED: 1, SCORED: 0, GROUPED: 1})


@settings(max_examples=40)
@given(
    batches=st.lists(st.lists(st.integers(), min_size=1, max_size=4), max_size=12),
    capacity=st.integers(1, 3),
    most=st.integers(1, 3),
    consumers=st.integers(1, 3),
)
def test_every_item_put_is_taken_once(
    batches: list[list[int]], capacity: int, most: int, consumers: int
) -> None:
    numbered = [
        tuple((batch, position) for position in range(len(items)))
        for batch, items in enumerate(batches)
    ]

    async def consume(buffer: SampleBuffer) -> list[object]:
        got: list[object] = []
        closed = False
        while not closed:
            taken, closed = await buffer.take(GROUPED, KEYS[1], most, 5.0)
            got.extend(taken)
        return got

    async def round_trip() -> list[object]:
        buffer = await opened(capacity)
        consuming = [asyncio.create_task(consume(buffer)) for _ in range(consumers)]
        for batch in numbered:
            for item in batch:
                assert await buffer.put(GROUPED, KEYS[1], (item,), 5.0)
        await buffer.close_stage(GROUPED, KEYS[1])
        return [item for got in await asyncio.gather(*consuming) for item in got]

    taken = asyncio.run(round_trip())
    assert sorted(taken) == [item for batch in numbered for item in batch]  # type: ignore[type-var]
    if consumers == 1:
        assert taken == [item for batch in numbered for item in batch]
