"""What an engine of several devices is told: its size, all cores or GPUs of its workers, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tasks.cluster.devices import ClusterConfig, engine_members, worker_specs
from tasks.cluster.fleet import Fleet
from tasks.engines.judge_remote import JudgeActor
from tasks.engines.remote import EngineActor
from tasks.engines.vllm_engine import EngineConfig
from tasks.learner.trainer import LearnerConfig
from tests.unit.judge_factories import make_config
from tests.unit.plan_factories import CONTEXT


class WorkersWithGpus:
    """As much of a Dask client as asking workers for their environment takes; worker engine-3 sees the GPU numbered 7."""

    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, dict[str, str]]]:
        return {"workers": {f"tcp://{index}": {"name": f"engine-{index}"} for index in range(4)}}

    def run(self, function: Callable[..., str], variable: str, default: str, workers: Sequence[str]) -> dict[str, str]:
        assert variable == "CUDA_VISIBLE_DEVICES"
        seen = {"tcp://2": "6,7", "tcp://3": "7"}  # an engine of both was here before, and widened what its first worker sees
        return {address: seen[address] for address in workers}


def fleet(kind: str, size: int) -> Fleet:
    cluster = ClusterConfig.model_validate({"device_kind": kind, "num_devices": 4, "roles": "rollout: 0-3, learner: 0"})
    devices = {spec.name: spec.device or "host" for spec in worker_specs(cluster)}
    run = replace(CONTEXT, devices=devices).with_engines(engine_members(cluster, size))
    return Fleet(WorkersWithGpus(), run, worker_specs(cluster), EngineConfig(), LearnerConfig(), start_s=1.0)


def engine_recipe(fleet: Fleet, name: str) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """(size, cores, GPUs) of an engine."""
    actor, (config, _, made, cores, gpus, _) = fleet._recipe(name)
    assert (actor, made) == (EngineActor, name)
    assert isinstance(config, EngineConfig)
    return config.tensor_parallel_size, cores, gpus  # type: ignore[return-value]  # arguments of an actor are objects


def test_an_engine_of_one_device_keeps_to_its_workers_own() -> None:
    assert engine_recipe(fleet("cpu", 1), "engine-2") == (1, (2,), ())
    assert engine_recipe(fleet("cuda", 1), "engine-2") == (1, (), ())


def test_an_engine_of_two_cpu_devices_gets_the_cores_of_both() -> None:
    assert engine_recipe(fleet("cpu", 2), "engine-2") == (2, (2, 3), ())


def test_an_engine_of_two_gpus_sees_the_gpu_of_each_of_its_workers() -> None:
    assert engine_recipe(fleet("cuda", 2), "engine-2") == (2, (), ("6", "7"))


def test_the_devices_of_an_engine_are_those_of_its_workers() -> None:
    run = fleet("cuda", 2).run
    assert run.engines == ("engine-0", "engine-2")
    assert run.devices_of("engine-2") == ("cuda:2", "cuda:3")
    assert run.devices_of("learner-0") == ("cuda:0",)


def test_a_judge_gets_its_own_model_and_the_cores_of_its_device() -> None:
    cluster = ClusterConfig(roles="rollout: 0-1, learner: 0-1, judge: 1")
    judge = make_config(mode="generative")
    devices = {spec.name: spec.device or "host" for spec in worker_specs(cluster)}
    run = replace(CONTEXT, devices=devices, rewards={"*": judge}, judges=("judge-0",), judge_model_path="judge-model")
    made = Fleet(WorkersWithGpus(), run, worker_specs(cluster), EngineConfig(), LearnerConfig(), start_s=9.0)._recipe("judge-0")
    assert made == (JudgeActor, (judge.engine, "judge-model", "judge-0", (1,), True, 9.0))
