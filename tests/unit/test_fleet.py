"""What an engine of several devices is told, which processes a recovery renews, and how a run ends
when some of its actors are gone."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tasks.cluster.actors import ActorLost, Remote
from tasks.cluster.devices import ClusterConfig, engine_members, worker_specs
from tasks.engines.remote import EngineActor
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.rewards.judges.engine import JudgeActor
from tasks.run.fleet import Fleet, creation_waves
from tasks.run.sample_stream import BUFFER
from tests.unit.judge_factories import make_config
from tests.unit.plan_factories import CONTEXT


class WorkersWithGpus:
    """As much of a Dask client as asking workers for their environment takes; worker engine-3 sees
    the GPU numbered 7."""

    def __init__(self) -> None:
        self.scheduler = self
        self.away = iter(())  # of these workers one after the other is away for a look

    def sync(self, ask: Callable[..., object], **options: int) -> object:
        return ask(**options)

    def identity(self, n_workers: int) -> dict[str, dict[str, dict[str, str]]]:
        here = set(range(4)) - {next(self.away, None)}
        return {"workers": {f"tcp://{index}": {"name": f"engine-{index}"} for index in here}}

    def run(
        self, function: Callable[..., str], variable: str, default: str, workers: Sequence[str]
    ) -> dict[str, str]:
        assert variable == "CUDA_VISIBLE_DEVICES"
        seen = {
            "tcp://2": "6,7",
            "tcp://3": "7",
        }  # an engine of both was here before, and widened what its first worker sees
        return {address: seen[address] for address in workers}


def fleet(kind: str, size: int) -> Fleet:
    cluster = ClusterConfig.model_validate(
        {"device_kind": kind, "num_devices": 4, "roles": "rollout: 0-3, learner: 0"}
    )
    devices = {spec.name: spec.device or "host" for spec in worker_specs(cluster)}
    run = replace(CONTEXT, devices=devices).with_engines(engine_members(cluster, size))
    return Fleet(WorkersWithGpus(), run, worker_specs(cluster))


def engine_recipe(fleet: Fleet, name: str) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """(size, cores, GPUs) of an engine."""
    actor, (config, _, made, cores, gpus, _, around) = fleet._recipe(name)
    assert around is None
    assert (actor, made) == (EngineActor, name)
    assert isinstance(config, VllmEngineConfig)
    return config.tensor_parallel_size, cores, gpus  # type: ignore[return-value]  # arguments of an actor are objects


def test_an_engine_of_one_device_keeps_to_its_workers_own() -> None:
    assert engine_recipe(fleet("cpu", 1), "engine-2") == (1, (2,), ())
    assert engine_recipe(fleet("cuda", 1), "engine-2") == (1, (), ())


def test_an_engine_of_two_cpu_devices_gets_the_cores_of_both() -> None:
    assert engine_recipe(fleet("cpu", 2), "engine-2") == (2, (2, 3), ())


def test_an_engine_of_two_gpus_sees_the_gpu_of_each_of_its_workers() -> None:
    assert engine_recipe(fleet("cuda", 2), "engine-2") == (2, (), ("6", "7"))


def test_the_gpu_of_a_worker_that_is_about_to_come_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.cluster.registry.time.sleep", lambda _: None)
    recovering = fleet("cuda", 2)
    recovering._client.away = iter((3, 3, 3))
    assert engine_recipe(recovering, "engine-2")[2] == ("6", "7")


def test_the_devices_of_an_engine_are_those_of_its_workers() -> None:
    run = fleet("cuda", 2).run
    assert run.engines == ("engine-0", "engine-2")
    assert run.devices_of("engine-2") == ("cuda:2", "cuda:3")
    assert run.devices_of("learner-0") == ("cuda:0",)


def test_a_judge_gets_its_own_model_and_the_cores_of_its_device() -> None:
    cluster = ClusterConfig(roles="rollout: 0-1, learner: 0-1, judge: 1")
    judge = make_config(mode="generative")
    devices = {spec.name: spec.device or "host" for spec in worker_specs(cluster)}
    run = replace(
        CONTEXT,
        devices=devices,
        rewards={"*": judge},
        judges=("judge-0",),
        judge_model_path="judge-model",
    )
    made = Fleet(WorkersWithGpus(), run, worker_specs(cluster))._recipe("judge-0")
    start_s = run.deadlines.start_s
    assert made == (JudgeActor, (judge.engine, "judge-model", "judge-0", (1,), True, start_s))


class Actors:
    """Actors that answer or do not, in the place of their registry."""

    def __init__(self, *lost: str, never_made: Sequence[str] = ()) -> None:
        self._lost, self._never_made, self.done = lost, never_made, list[str]()
        self.names = frozenset((BUFFER, "engine-0", "engine-1", *LEARNERS)) - set(never_made)

    async def lost(self) -> tuple[str, ...]:
        return tuple(set(self._lost) - set(self._never_made))

    def restart_living(self, names: Sequence[str], deadline_s: float) -> None:
        self.done.append(f"restart {' '.join(names)}")

    def accounts(self) -> tuple[str, ...]:
        return ()

    def environment(
        self, workers: Sequence[str], variable: str, deadline_s: float
    ) -> tuple[str, ...]:
        return ("",) * len(workers)

    def create_all(
        self,
        workers: Mapping[str, str],
        actors: Mapping[str, object],
        deadline_s: float,
    ) -> None:
        self.done.append(f"make {' '.join(actors)}")
        self.names |= set(actors)
        self._lost = ()

    def remote(self, name: str) -> Remote:
        if name not in self.names:
            raise ActorLost(f"{name} is not there")
        return Called(name, self)


class Called(Remote):
    """A handle on one of them."""

    def __init__(self, name: str, actors: Actors) -> None:
        super().__init__(name, actors, asyncio.get_running_loop())

    async def call(self, method: str, *args: object, deadline_s: float) -> str:
        if self.name in self.actor._lost:
            raise ActorLost(f"{self.name} was lost during {method}")
        self.actor.done.append(f"{method} {self.name}")
        return "tcp://meeting-point"


LEARNERS = ("learner-0", "learner-1")


def fleet_of(actors: Actors) -> Fleet:
    """Two engines and two learners."""
    cluster = ClusterConfig(num_devices=2, roles="rollout: 0-1, learner: 0-1")
    specs = worker_specs(cluster)
    devices = {spec.name: spec.device or "host" for spec in specs}
    run = replace(CONTEXT, devices=devices, engines=("engine-0", "engine-1"), learners=LEARNERS)
    client = SimpleNamespace(status="running")
    made = Fleet(client, run, specs)
    made._registry = actors  # type: ignore[assignment]  # as much of it as is asked
    return made


async def test_ranks_that_lost_each_other_all_get_new_processes() -> None:
    """Each of them lives and reports the loss of its peer."""
    actors = Actors()
    fleet = fleet_of(actors)
    await fleet.start()
    actors._lost = LEARNERS
    actors.done.clear()
    assert await fleet.replace_lost() == LEARNERS
    assert actors.done[:2] == ["restart learner-0 learner-1", "make learner-0 learner-1"]
    assert actors.done[2:] == ["rendezvous learner-0", "join learner-0", "join learner-1"]


async def test_a_lost_engine_gets_a_new_process_and_leaves_the_learners_alone() -> None:
    """The process may live: an engine that missed a deadline is still in its step there."""
    actors = Actors()
    fleet = fleet_of(actors)
    await fleet.start()
    actors._lost = ("engine-1",)
    actors.done.clear()
    assert await fleet.replace_lost() == ("engine-1",)
    assert actors.done == ["restart engine-1", "make engine-1"]


async def test_a_start_that_ended_before_the_learners_met_is_gone_on_with() -> None:
    actors = Actors(never_made=("engine-1",))
    lost = await fleet_of(actors).replace_lost()
    assert lost == ("engine-1", *LEARNERS)
    assert actors.done[0] == "restart engine-1 learner-0 learner-1"
    assert actors.done[-2:] == ["join learner-0", "join learner-1"]


@pytest.mark.parametrize("never_made", [(), (BUFFER,)])
async def test_without_a_buffer_all_others_are_closed(never_made: Sequence[str]) -> None:
    actors = Actors(BUFFER, "learner-1", never_made=never_made)
    await fleet_of(actors)._end()
    assert sorted(actors.done) == ["close engine-0", "close engine-1", "close learner-0"]


def test_a_run_is_told_the_same_in_every_process() -> None:
    run = fleet("cuda", 2).run
    told = pickle.loads(pickle.dumps(run))
    assert told == run
    assert told.max_prompt_tokens == run.engine.max_model_len - run.sampling.max_response_tokens


def test_engines_start_alone_on_gpus_and_beside_all_others_on_cpus() -> None:
    """vLLM takes for its own whatever memory goes on its GPU while it starts."""
    names = ["buffer", "engine-0", "engine-1", "learner-0", "judge-0"]
    run = replace(CONTEXT, engines=("engine-0", "engine-1"), judges=("judge-0",))
    on_gpus = replace(run, devices=dict.fromkeys(names[1:], "cuda:0"))
    on_cpus = replace(run, devices=dict.fromkeys(names[1:], "cpu:0"))
    assert creation_waves(on_cpus, names) == [names]
    assert creation_waves(on_gpus, names) == [names[1:3], ["judge-0"], ["buffer", "learner-0"]]
    assert creation_waves(on_gpus, ["learner-0"]) == [["learner-0"]]
    apart = replace(on_gpus, devices={**on_gpus.devices, "learner-0": "cuda:1"})
    assert creation_waves(apart, names) == [[*names[1:4]], ["judge-0"], ["buffer"]]
