"""An engine in the process of an elastic worker, and what of a run is sent there to build it.

recipe ─▶ ElasticEngineActor: reads the model where the run has it
      └─▶ PullingEngineActor: pulls the model, and every version before it is loaded
"""

from __future__ import annotations

from collections.abc import Sequence

from distributed import get_worker

from artifacts.records import pack
from tasks.cluster.registry import Recipe
from tasks.cluster.served import mark_served
from tasks.elastic.pulls import WeightOrigin, WeightPulls
from tasks.elastic.records import RunForWorkers
from tasks.elastic.worker_card import WorkerCard
from tasks.engines.registry import EngineConfig
from tasks.engines.remote import EngineActor


class ElasticEngineActor(EngineActor):
    """An engine in a process of its own: what it leaves there is found by the next run."""

    def __init__(
        self,
        config: EngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        mark_served(name)
        super().__init__(config, model_path, name, core_ids, (), seed)


class PullingEngineActor(ElasticEngineActor):
    """One that has all files of the run over the network."""

    def __init__(
        self,
        config: EngineConfig,
        origin: WeightOrigin,
        name: str,
        core_ids: tuple[int, ...],
        seed: int,
    ) -> None:
        """Blocks until the model has come. Errors: see `weights.client.pull`."""
        mark_served(name)  # before the pull: whoever comes next must find it
        self._pulls = WeightPulls(origin, name, get_worker())
        super().__init__(config, self._pulls.model(), name, core_ids, seed)

    async def pull(self, version: str) -> bytes:
        """Have this version here; where."""
        return pack(await self._pulls.pull(version))


def recipe(
    run: RunForWorkers, name: str, devices: Sequence[str], origin: WeightOrigin | None = None
) -> Recipe:
    """The engine of an elastic worker that has these devices: one over all of its GPUs, or on all
    of its cores. origin: from where it pulls; None where it reads the run's own paths."""
    gpus = [device for device in devices if device.startswith("cuda:")]
    cores = () if gpus else tuple(range(len(devices)))
    config = run.engine.model_copy(update={"tensor_parallel_size": max(1, len(gpus))})
    if origin is not None:
        return PullingEngineActor, (config, origin, name, cores, run.seed)
    return ElasticEngineActor, (config, run.model_path, name, cores, run.seed)


def shown_devices(worker: str, devices: Sequence[str]) -> tuple[str, ...]:
    """The devices as the timeline shows them: every GPU, or all cores as one."""
    gpus = tuple(f"{worker}/{device}" for device in devices if device.startswith("cuda:"))
    return gpus or (f"{worker}/cpu",)


def packages_of(card: WorkerCard) -> dict[str, str]:
    """The versions on a card that must be the run's."""
    return {"rollflow": card["rollflow"], "vllm": card["vllm"]}
