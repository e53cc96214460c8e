"""Engines that join the evaluation of a version: those that hold it take part, others do not."""

from __future__ import annotations

from dataclasses import replace

from elastic_worker_factories import Door, WatchedEngine, joined, undisturbed_tokens
from round_factories import make_plan, play

from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.elastic_engines import EngineGone

EVALUATION = replace(
    make_plan(domains=("a",) * 6, accept_per_prompt=2), kind="evaluate", is_evaluation=True
)
NUM_RESPONSES = 12


def test_an_elastic_worker_that_joins_in_mid_evaluation_takes_part_and_may_go() -> None:
    async def work() -> None:
        own, elastic_worker = WatchedEngine("engine-0"), WatchedEngine("elastic-worker-0.g1")
        door = Door()
        door.tell_at(1.0, joined(elastic_worker))
        door.tell_at(4.0, EngineGone(name="elastic-worker-0.g1", reason="its worker is away"))
        result = await play(EVALUATION, [own], elastic_workers=door)
        assert elastic_worker.submitted
        assert result.joined == {"elastic-worker-0.g1": ("elastic-worker-0.g1:0",)}
        assert len({response.response_id for response in result.generated}) == NUM_RESPONSES
        assert len(result.generated) == NUM_RESPONSES
        for response in result.generated:
            assert response.token_ids == undisturbed_tokens(response.prompt_id, response.index)

    run_virtual(work())


def test_an_elastic_worker_with_other_weights_is_not_asked() -> None:
    async def work() -> None:
        own, elastic_worker = (
            WatchedEngine("engine-0"),
            WatchedEngine("elastic-worker-0.g1", version=1),
        )
        result = await play(
            EVALUATION, [own], elastic_workers=Door(joined(elastic_worker, version=1))
        )
        assert not elastic_worker.submitted
        assert result.joined == {}
        assert len(own.submitted) == len(result.generated) == NUM_RESPONSES

    run_virtual(work())
