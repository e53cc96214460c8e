"""A replica that a round and an evaluation share: each gets what it asked for, and knows of nothing
else."""

from __future__ import annotations

import asyncio

from record_factories import make_request

from artifacts.new_tokens import NewTokens, split_news
from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.base import EngineLost
from tasks.engines.remote import GATHERING_S, EngineClient, ResponseMux
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel

CONFIG = SimulatedEngineConfig(lengths=LengthModel(median_tokens=100, sigma=1.0))
WEIGHTS = WeightsRef(version=0, path="", digest="")


def asked(prompt_id: str, index: int) -> Request:
    return make_request(prompt_id=prompt_id, index=index, seed=index)


async def collected(askers: ResponseMux, asker: EngineClient, num_wanted: int) -> list[Generated]:
    """Waits as the driver of a round does, poll after poll."""
    came: list[Generated] = []
    async with asyncio.timeout(600):
        while len(came) < num_wanted:
            came += await askers.collect(asker, 5.0)
    return came


def names(came: list[Generated]) -> set[str]:
    return {response.response_id for response in came}


def test_each_collects_what_it_asked_for_while_the_other_waits_too() -> None:
    async def share() -> None:
        replica = SimulatedEngine("engine-0", CONFIG)
        askers = ResponseMux(replica)
        trained = [asked("a", index) for index in range(6)]
        heldout = [asked("b", index) for index in range(5)]
        await askers.submit(EngineClient.ROUND, trained)
        await askers.submit(EngineClient.EVALUATION, heldout)
        of_round, of_evaluation = await asyncio.gather(
            collected(askers, EngineClient.ROUND, 6), collected(askers, EngineClient.EVALUATION, 5)
        )
        assert names(of_round) == {request.response_id for request in trained}
        assert names(of_evaluation) == {request.response_id for request in heldout}
        assert await askers.collect(EngineClient.ROUND, 0.0) == []

    run_virtual(share())


def test_what_a_round_asked_for_waits_for_it_while_the_evaluation_goes_on() -> None:
    async def share() -> None:
        askers = ResponseMux(SimulatedEngine("engine-0", CONFIG))
        await askers.submit(EngineClient.ROUND, [asked("a", index) for index in range(6)])
        await askers.submit(EngineClient.EVALUATION, [asked("b", index) for index in range(40)])
        assert len(await collected(askers, EngineClient.EVALUATION, 40)) == 40
        assert len(await collected(askers, EngineClient.ROUND, 6)) == 6

    run_virtual(share())


def test_to_stop_nothing_ends_both_waits_at_once() -> None:
    async def share() -> None:
        replica = SimulatedEngine("engine-0", CONFIG)
        askers = ResponseMux(replica)
        await askers.submit(EngineClient.ROUND, [asked("a", 0)])
        waits = [asyncio.create_task(askers.collect(asker, 500.0)) for asker in EngineClient]
        await asyncio.sleep(0.0001)
        await replica.abort(())
        assert await asyncio.gather(*waits) == [[], []]
        assert asyncio.get_running_loop().time() < 1

    run_virtual(share())


def test_a_load_that_drops_forgets_what_nobody_collected() -> None:
    async def share() -> None:
        askers = ResponseMux(SimulatedEngine("engine-0", CONFIG))
        await askers.submit(EngineClient.ROUND, [asked("a", 0)])
        await askers.submit(EngineClient.EVALUATION, [asked("b", 0)])
        while not await askers.collect(EngineClient.EVALUATION, 5.0):
            pass
        await asyncio.sleep(600)
        await askers.collect(
            EngineClient.EVALUATION, 1.0
        )  # what the round asked for is in its box now
        await askers.load_weights(WEIGHTS, (), Running.DROP)
        assert await askers.collect(EngineClient.ROUND, 1.0) == []

    run_virtual(share())


def test_both_hear_of_a_replica_that_is_lost() -> None:
    async def share() -> None:
        replica = SimulatedEngine("engine-0", CONFIG)
        askers = ResponseMux(replica)
        await askers.submit(EngineClient.ROUND, [asked("a", 0)])
        waits = [asyncio.create_task(askers.collect(asker, 500.0)) for asker in EngineClient]
        await asyncio.sleep(0.0001)
        replica.close()
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(end) for end in ended] == [EngineLost, EngineLost]

    run_virtual(share())


def test_each_is_told_of_what_it_asked_for_before_that_is_over() -> None:
    async def share() -> None:
        telling = CONFIG.model_copy(update={"report_tokens": 16})
        askers = ResponseMux(SimulatedEngine("engine-0", telling))
        await askers.submit(EngineClient.ROUND, [asked("a", index) for index in range(4)])
        await askers.submit(EngineClient.EVALUATION, [asked("b", index) for index in range(4)])
        for asker, prompt_id in ((EngineClient.ROUND, "a"), (EngineClient.EVALUATION, "b")):
            reports: list[NewTokens] = []
            whole: list[Generated] = []
            while len(whole) < 4:
                over, told = split_news(await askers.collect(asker, 5.0))
                assert not {new.response_id for new in told} & names(whole)
                reports, whole = reports + told, whole + over
            assert {new.prompt_id for new in reports} == {prompt_id}
            for response in whole:
                told = [new for new in reports if new.response_id == response.response_id]
                num_told = sum(len(new.token_ids) for new in told)
                assert 0 < len(response.token_ids) - num_told <= 16

    run_virtual(share())


def test_responses_that_end_one_after_the_other_come_in_few_answers() -> None:
    async def share() -> tuple[int, float]:
        clock = asyncio.get_running_loop().time
        askers = ResponseMux(SimulatedEngine("engine-0", CONFIG))
        await askers.submit(EngineClient.ROUND, [asked("a", index) for index in range(200)])
        num_answers, num_come = 0, 0
        while num_come < 200:
            num_come += len(await askers.collect(EngineClient.ROUND, 5.0))
            num_answers += 1
        return num_answers, clock()

    num_answers, took_s = run_virtual(share())
    assert 2 < num_answers <= 1 + took_s / GATHERING_S


def test_who_waits_for_an_answer_of_before_a_load_gets_nothing_of_after_it() -> None:
    """Also while the replica's messages are gathered: whoever waited may be dead."""

    async def share() -> None:
        askers = ResponseMux(SimulatedEngine("engine-0", CONFIG))
        await askers.submit(EngineClient.ROUND, [asked("a", 0)])
        assert len(await collected(askers, EngineClient.ROUND, 1)) == 1
        late = asyncio.create_task(askers.collect(EngineClient.ROUND, 5.0))
        await asyncio.sleep(GATHERING_S / 2)
        await askers.load_weights(WEIGHTS, (), Running.DROP)
        await askers.submit(EngineClient.ROUND, [asked("b", 0)])
        assert await late == []
        assert names(await collected(askers, EngineClient.ROUND, 1)) == {"b:0"}

    run_virtual(share())
