"""A round in mid-step, a worker that joins it from a process of its own, and is killed: keeper,
sample buffer, Dask and the worker are real, engines and rewards are simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from plan_factories import CONTEXT
from round_factories import ENGINE, make_plan, play
from worker_processes import a_trainer, an_elastic_worker

from artifacts.records import Request, WeightsRef
from tasks.cluster.actors import Remote
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.config import ElasticConfig
from tasks.elastic.engines import ElasticEngines
from tasks.elastic.keeper import ElasticKeeper
from tasks.elastic.worker_card import TOPIC
from tasks.elastic.workers import JoinedWorkers
from tasks.engines.remote import RemoteEngine
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.learner.reports import PublishReport
from tasks.rounds.elastic_engines import WorkerNotice
from tasks.rounds.records import RoundResult
from tasks.run.elastic_setup import admission_of, run_for_workers
from tasks.run.run_context import RunContext
from tasks.run.sample_buffer import RoundKey, SampleBuffer, Stage
from tasks.run.sample_stream import CAPACITIES
from tasks.run.stream_workers import StreamWorkers

pytestmark = pytest.mark.flow

PLAN = make_plan(domains=("a",) * 6, accept_per_prompt=4)
NUM_RESPONSES, MOST_TOKENS = 24, 300
SLOW = ENGINE.model_copy(update={"step_s": 0.05})  # a long response takes 15 s
KEY = RoundKey(1)
WEIGHTS = WeightsRef(version=0, path="", digest="")
COMES_WITHIN_S = 300.0  # a process that imports Dask beside others that take every core


class NearStream:
    """The stream of a round whose buffer is in the same process."""

    def __init__(self, buffer: SampleBuffer) -> None:
        self._buffer = buffer

    async def take(
        self, stage: Stage[Any], max_items: int, wait_s: float
    ) -> tuple[list[Any], bool]:  # Any: of any record
        return await self._buffer.take(stage, KEY, max_items, wait_s)

    async def announce_worker(self, told: WorkerNotice) -> None:
        await self._buffer.announce_worker(told)


class SlowEngine(SimulatedEngine):
    """The run's own engine, which remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("engine-0", SLOW)
        self.submitted: list[Request] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.submitted += requests
        await super().submit(requests)


class House:
    """A run's side of its elastic workers, without the flow."""

    def __init__(self, client: Client, run: RunContext, membership: WorkerAdmission) -> None:
        self.buffer = SampleBuffer(CAPACITIES)
        self.engines = ElasticEngines(client, run_for_workers(run))
        workers = JoinedWorkers(client, token="secret")
        self.keeper = ElasticKeeper(membership, workers, self.engines, self._tell)

        def connect(name: str) -> RemoteEngine:
            return RemoteEngine(Remote.connect(run.run_id, name, client), run.elastic.lease_s)

        def tell_keeper(message: dict[str, str]) -> None:
            client.log_event(TOPIC, message)

        stream = NearStream(self.buffer)
        self.elastic_workers = StreamWorkers(stream, connect, tell_keeper)  # type: ignore[arg-type]

    async def _tell(self, told: WorkerNotice) -> None:
        await self.buffer.announce_worker(told)

    async def until_state(self, name: str, state: str) -> None:
        async with asyncio.timeout(COMES_WITHIN_S):
            while (name, state) not in {
                (elastic_worker.name, elastic_worker.state)
                for elastic_worker in self.keeper.workers
            }:
                await asyncio.sleep(0.05)

    async def until_at_work(self, name: str) -> None:
        """Until it has said something that it has not handed over."""
        async with asyncio.timeout(COMES_WITHIN_S):
            while await self.engines.is_empty(name):
                await asyncio.sleep(0.05)


async def test_an_elastic_worker_joins_a_round_is_killed_and_no_response_is_lost(
    tmp_path: Path,
) -> None:
    (token := tmp_path / "token").write_text("secret")
    elastic = ElasticConfig(enabled=True, lease_s=120.0, build_s=COMES_WITHIN_S)
    run = replace(
        CONTEXT,
        engine=SLOW,
        elastic=elastic,
        artifact_root=f"file://{tmp_path}",
        run_id="run",
    )
    words = ("--name", "spot", "--token-file", str(token), "--lease-s", "120")
    with a_trainer() as trainer, an_elastic_worker(trainer.address, *words) as process:
        house = House(trainer.client, run, admission_of(run, {}))
        await house.keeper.start()
        await house.buffer.open_round(KEY)
        await house.keeper.publish(
            PublishReport(weights=WEIGHTS, probe_difference_nats=None, check_s=0.0, spans=())
        )
        await house.until_state("spot.g1", "present")
        own = SlowEngine()

        async def played() -> RoundResult:
            return await play(
                PLAN, [own], elastic_workers=house.elastic_workers, max_response_tokens=MOST_TOKENS
            )

        playing = asyncio.create_task(played())
        await house.until_at_work("spot.g1")
        asked_before = len(own.submitted)
        process.kill()
        result = await playing
        await house.until_state("spot.g1", "gone")
        house.keeper.stop(is_over=True)
    assert result.joined == {"spot.g1": ("spot/cpu",)}
    assert 0 < asked_before < NUM_RESPONSES < len(own.submitted) + NUM_RESPONSES
    assert len(own.submitted) > asked_before, "what the elastic worker had is generated here"
    names = [response.response_id for response in result.generated]
    assert len(names) == len(set(names)) == NUM_RESPONSES
    assert len(result.groups) == 6
