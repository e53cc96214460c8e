"""Engines that join the evaluation of a version: those that hold it take part, others do not."""

from __future__ import annotations

from dataclasses import replace

from guest_factories import Door, WatchedEngine, joined, undisturbed_tokens
from round_factories import make_plan, play

from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.elastic_engines import EngineGone

EVALUATION = replace(
    make_plan(domains=("a",) * 6, accept_per_prompt=2), kind="evaluate", is_evaluation=True
)
NUM_RESPONSES = 12


def test_a_guest_that_joins_in_mid_evaluation_takes_part_and_may_go() -> None:
    async def work() -> None:
        own, guest = WatchedEngine("engine-0"), WatchedEngine("guest-0.g1")
        door = Door()
        door.tell_at(1.0, joined(guest))
        door.tell_at(4.0, EngineGone(name="guest-0.g1", reason="its worker is away"))
        result = await play(EVALUATION, [own], guests=door)
        assert guest.submitted
        assert result.joined == {"guest-0.g1": ("guest-0.g1:0",)}
        assert len({response.response_id for response in result.generated}) == NUM_RESPONSES
        assert len(result.generated) == NUM_RESPONSES
        for response in result.generated:
            assert response.token_ids == undisturbed_tokens(response.prompt_id, response.index)

    run_virtual(work())


def test_a_guest_with_other_weights_is_not_asked() -> None:
    async def work() -> None:
        own, guest = WatchedEngine("engine-0"), WatchedEngine("guest-0.g1", version=1)
        result = await play(EVALUATION, [own], guests=Door(joined(guest, version=1)))
        assert not guest.submitted
        assert result.joined == {}
        assert len(own.submitted) == len(result.generated) == NUM_RESPONSES

    run_virtual(work())
