"""Engines that join a round and leave it, over simulated engines on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from elastic_worker_factories import Door, HangingEngine, WatchedEngine, joined, undisturbed_tokens
from round_factories import ENGINE, make_plan, play

from artifacts.records import Group, Request
from tasks.engines.base import EngineLost
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.elastic_engines import EngineGone, EngineLeaving
from tasks.rounds.records import RoundResult
from tasks.scheduling.stream_training import (
    DeviceGroup,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)

SYNC = make_plan(domains=("a",) * 6, accept_per_prompt=4)
SHORT = make_plan(
    "short", domains=("a",) * 8, accept_prompts=6, accept_per_prompt=4, launch_per_prompt=5
)
NUM_RESPONSES = 24


def assert_undisturbed(result: RoundResult) -> None:
    """Every response once, of the tokens that it would have had anyway."""
    assert len({response.response_id for response in result.generated}) == NUM_RESPONSES
    assert len(result.generated) == NUM_RESPONSES
    for response in result.generated:
        assert response.token_ids == undisturbed_tokens(response.prompt_id, response.index)
    assert len(result.groups) == 6


def names_of(requests: Sequence[Request]) -> list[str]:
    return [request.response_id for request in requests]


def test_a_round_that_no_elastic_worker_joins_is_the_round_without_elastic_workers() -> None:
    async def with_door(door: Door | None) -> tuple[RoundResult, list[list[Request]]]:
        engines = [WatchedEngine("engine-0"), WatchedEngine("engine-1")]
        result = await play(SHORT, engines, elastic_workers=door)
        return result, [engine.submitted for engine in engines]

    async def empty() -> tuple[RoundResult, list[list[Request]]]:
        return await with_door(Door())

    assert run_virtual(with_door(None)) == run_virtual(empty())


def test_an_elastic_worker_that_is_present_when_the_round_begins_has_its_share() -> None:
    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), WatchedEngine("elastic-worker-0.g1")
        result = await play(SYNC, [own], elastic_workers=Door(joined(elastic_worker)))
        assert_undisturbed(result)
        assert len(own.submitted) == len(elastic_worker.submitted) == NUM_RESPONSES / 2
        assert result.joined == {"elastic-worker-0.g1": ("elastic-worker-0.g1:0",)}

    run_virtual(work())


def test_an_elastic_worker_has_no_more_requests_at_a_time_than_its_limit() -> None:
    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), WatchedEngine("elastic-worker-0.g1")
        result = await play(
            SYNC, [own], elastic_workers=Door(joined(elastic_worker, max_running=3))
        )
        assert_undisturbed(result)
        assert elastic_worker.max_running == len(elastic_worker.submitted) == 3

    run_virtual(work())


def test_without_any_engine_the_round_waits_for_an_elastic_worker_and_asks_it_in_order() -> None:
    async def work() -> None:
        door = Door()
        elastic_worker, late = (
            WatchedEngine("elastic-worker-0.g1"),
            WatchedEngine("elastic-worker-1.g1"),
        )
        door.tell_at(500.0, joined(elastic_worker, max_running=5))
        door.tell_at(502.0, joined(late, max_running=2))
        result = await play(SYNC, [], elastic_workers=door)
        assert_undisturbed(result)
        assert asyncio.get_running_loop().time() > 500.0
        assert (elastic_worker.max_running, late.max_running) == (5, 2)
        assert late.submitted
        asked = names_of([*elastic_worker.submitted, *late.submitted])
        assert sorted(asked) == sorted(response.response_id for response in result.generated)
        assert names_of(elastic_worker.submitted) == sorted(names_of(elastic_worker.submitted))

    run_virtual(work())


def test_without_any_engine_those_of_the_run_are_made_anew_soon() -> None:
    async def work() -> float:
        with pytest.raises(
            EngineLost, match="no engine was left for 10 s, and no elastic worker came"
        ):
            await play(SYNC, [], elastic_workers=Door(), deadline_s=60, empty_s=10)
        return asyncio.get_running_loop().time()

    assert 10 <= run_virtual(work()) < 20


def test_the_wait_for_an_elastic_worker_has_the_round_s_deadline() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError) as caught:
            await play(SYNC, [], elastic_workers=Door(), deadline_s=60)
        assert "24 requests wait for an engine with room" in str(caught.value)
        assert "alive: no engine" in str(caught.value)
        return asyncio.get_running_loop().time()

    assert 60 <= run_virtual(work()) < 70


def test_a_round_goes_on_with_an_elastic_worker_when_its_last_own_engine_is_lost() -> None:
    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), WatchedEngine("elastic-worker-0.g1")
        asyncio.get_running_loop().call_later(0.5, own.fail)
        result = await play(SYNC, [own], elastic_workers=Door(joined(elastic_worker)))
        assert_undisturbed(result)
        assert {response.engine for response in result.generated} >= {elastic_worker.name}

    run_virtual(work())


def test_a_round_that_has_lost_every_engine_goes_on_with_the_next_that_joins() -> None:
    async def work() -> None:
        own, elastic_worker, next_one = (
            WatchedEngine(name) for name in ("engine-0", "a.g1", "a.g2")
        )
        door = Door(joined(elastic_worker))
        asyncio.get_running_loop().call_later(0.5, own.fail)
        door.tell_at(0.7, EngineGone(name="a.g1", reason="its lease is over"))
        door.tell_at(90.0, joined(next_one))
        assert_undisturbed(await play(SYNC, [own], elastic_workers=door))
        assert next_one.submitted

    run_virtual(work())


def test_what_runs_on_an_elastic_worker_that_is_leaving_goes_on_elsewhere_with_its_tokens() -> None:
    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), WatchedEngine("elastic-worker-0.g1")
        door = Door(joined(elastic_worker))
        door.tell_at(0.6, EngineLeaving(name=elastic_worker.name))
        result = await play(SYNC, [own], elastic_workers=door)
        assert_undisturbed(result)
        assert result.migrated
        assert {part.engine for part in result.migrated} == {elastic_worker.name}
        resumed = {request.response_id: request for request in own.submitted if request.kept_tokens}
        assert resumed.keys() == {part.response_id for part in result.migrated if part.token_ids}
        assert set(elastic_worker.aborted) == {part.response_id for part in result.migrated}
        assert len(elastic_worker.submitted) == NUM_RESPONSES / 2
        asked = Counter(names_of(own.submitted)) + Counter(names_of(elastic_worker.submitted))
        assert sum(asked.values()) == NUM_RESPONSES + len(result.migrated)

    run_virtual(work())


def test_an_elastic_worker_that_hangs_holds_up_nobody_and_its_end_is_heard() -> None:
    """It takes what it is asked and says nothing, then stops taking anything at all."""

    async def work(hangs_s: float) -> float:
        own, elastic_worker = WatchedEngine("engine-0"), HangingEngine("elastic-worker-0.g1")
        door = Door(joined(elastic_worker))
        asyncio.get_running_loop().call_at(hangs_s, setattr, elastic_worker, "hangs", True)
        door.tell_at(hangs_s + 0.1, EngineLeaving(name=elastic_worker.name))
        door.tell_at(8.0, EngineGone(name=elastic_worker.name, reason="its lease is over"))
        assert_undisturbed(await play(SYNC, [own], elastic_workers=door))
        return min(own.finished_s)

    for hangs_s in (0.0, 0.5):
        assert run_virtual(work(hangs_s)) < 5.0


def test_a_closed_round_waits_only_a_moment_for_an_elastic_worker() -> None:
    """Its surplus runs on an elastic worker that hangs when it is to be stopped."""

    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), HangingEngine("elastic-worker-0.g1")
        door = Door(joined(elastic_worker, max_running=2))
        asyncio.get_running_loop().call_at(0.1, setattr, elastic_worker, "hangs", True)
        accepted: list[Group] = []
        result = await play(SHORT, [own], elastic_workers=door, accepted=accepted)
        assert len(result.groups) == len(accepted) == 6
        assert asyncio.get_running_loop().time() < max(own.finished_s) + 12.0
        assert elastic_worker.name not in {response.engine for response in result.generated}

    run_virtual(work())


def test_an_elastic_worker_with_other_weights_is_asked_nothing() -> None:
    async def work() -> None:
        elastic_worker = WatchedEngine("elastic-worker-0.g1", version=1)
        result = await play(
            SYNC, [WatchedEngine("engine-0")], elastic_workers=Door(joined(elastic_worker, 1))
        )
        assert_undisturbed(result)
        assert (elastic_worker.submitted, result.joined) == ([], {})

    run_virtual(work())


def test_an_elastic_worker_that_lies_about_its_weights_is_lost() -> None:
    async def work() -> None:
        liar = WatchedEngine("elastic-worker-0.g1", version=7)
        door = Door(joined(liar, 0))
        result = await play(SYNC, [WatchedEngine("engine-0")], elastic_workers=door)
        assert_undisturbed(result)
        assert {response.engine for response in result.generated} == {"engine-0"}
        assert result.stale_tokens > 0
        assert door.given_up.keys() == {liar.name}

    run_virtual(work())


def test_an_elastic_worker_that_a_round_gives_up_is_told_of_and_one_that_is_gone_is_not() -> None:
    async def work() -> None:
        own, sick, gone = (WatchedEngine(name) for name in ("engine-0", "a.g1", "b.g1"))
        door = Door(joined(sick), joined(gone))
        asyncio.get_running_loop().call_later(0.3, sick.fail)
        asyncio.get_running_loop().call_later(0.5, own.fail)
        door.tell_at(0.4, EngineGone(name="b.g1", reason="its lease is over"))
        door.tell_at(1.0, joined(WatchedEngine("a.g2")))
        assert_undisturbed(await play(SYNC, [own], elastic_workers=door))
        assert door.given_up == {"a.g1": "a.g1 is gone"}

    run_virtual(work())


def test_what_an_elastic_worker_still_runs_for_a_round_that_gave_it_up_is_trained_by_no_other() -> (
    None
):
    """It hangs for a while, and comes back under its name before anybody has ended it."""

    async def work() -> None:
        elastic_worker = HangingEngine("elastic-worker-0.g1")
        first = Door(joined(elastic_worker))
        asyncio.get_running_loop().call_later(0.3, setattr, elastic_worker, "hangs", True)
        first.tell_at(0.4, EngineGone(name=elastic_worker.name, reason="its lease is over"))
        one = await play(SYNC, [WatchedEngine("engine-0")], elastic_workers=first, attempt=1)
        assert_undisturbed(one)
        elastic_worker.hangs = False
        assert (await elastic_worker.stats()).progress or elastic_worker.submitted, (
            "it has old requests"
        )
        again = Door(joined(elastic_worker))
        other = await play(SYNC, [WatchedEngine("engine-1")], elastic_workers=again, attempt=2)
        assert_undisturbed(other)
        assert {response.attempt for response in other.generated} == {2}
        assert other.stale_tokens > 0

    run_virtual(work())


def test_news_that_change_nothing_change_nothing() -> None:
    async def work() -> None:
        own, elastic_worker, twin = (WatchedEngine(name) for name in ("engine-0", "a.g1", "a.g1"))
        stranger = EngineGone(name="nobody", reason="its lease is over")
        leaving, gone = EngineLeaving(name="a.g1"), EngineGone(name="a.g1", reason="over")
        door = Door(
            stranger, EngineLeaving(name="nobody"), joined(elastic_worker), joined(elastic_worker)
        )
        door.tell_at(0.4, joined(twin), leaving, leaving, joined(twin))
        door.tell_at(0.5, leaving, gone, gone, leaving, joined(twin))
        assert_undisturbed(await play(SYNC, [own], elastic_workers=door))
        assert twin.submitted == []

    run_virtual(work())


def test_an_elastic_worker_that_cannot_take_a_request_is_lost_and_the_run_goes_on() -> None:
    async def work() -> None:
        small = ENGINE.model_copy(update={"max_model_len": 64})
        elastic_worker = WatchedEngine("elastic-worker-0.g1", small)
        result = await play(
            SYNC, [WatchedEngine("engine-0")], elastic_workers=Door(joined(elastic_worker))
        )
        assert_undisturbed(result)
        assert {response.engine for response in result.generated} == {"engine-0"}

    run_virtual(work())


def test_what_was_stopped_while_it_waited_is_asked_of_nobody() -> None:
    """A short round has its groups before the line is empty."""

    async def work() -> None:
        elastic_worker = WatchedEngine("elastic-worker-0.g1")
        result = await play(SHORT, [], elastic_workers=Door(joined(elastic_worker, max_running=1)))
        assert len(result.groups) == 6
        asked = names_of(elastic_worker.submitted)
        assert len(asked) == len(set(asked)) < 40
        assert {response.response_id for response in result.generated} == set(asked)

    run_virtual(work())


def test_devices_that_were_freed_generate_again_when_the_last_elastic_worker_leaves() -> None:
    """The engine that stayed is lost, an elastic worker goes on, and then it leaves as well."""

    async def work() -> None:
        engines = [WatchedEngine("engine-0"), WatchedEngine("engine-1")]
        elastic_worker = WatchedEngine("elastic-worker-0.g1")
        freed: list[ScaleDown] = []
        door = Door()

        async def disturb() -> None:
            while not freed:
                await asyncio.sleep(0.01)
            door.tell(joined(elastic_worker))
            await asyncio.sleep(0.1)
            next(each for each in engines if each.name not in freed[0].engines).fail()
            await asyncio.sleep(0.1)
            assert elastic_worker.submitted
            door.tell(EngineLeaving(name=elastic_worker.name))

        disturbing = asyncio.create_task(disturb())
        pairs = [
            DeviceGroup(engines=(engine.name,), learners=(f"learner-{place}",))
            for place, engine in enumerate(engines)
        ]
        config = StreamTrainerConfig(enabled=True, max_freed_share=0.5)
        trainer = StreamTrainer(config, pairs, SYNC.accept_prompts)
        result = await play(SYNC, engines, trainer=trainer, freed=freed, elastic_workers=door)
        await disturbing
        assert_undisturbed(result)
        assert len(freed) == 1

    run_virtual(work())
