"""The actors of a run: sample buffer, engines, learner ranks, judges and pools of environments;
started together, replaced one by one when their worker dies.

Pools of environments are replaced even while a round runs (`PoolKeeper`). When a learner rank is
lost, all are recreated in new processes, and the caller must restore their state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from distributed import Client

from tasks.cluster.actors import ActorLost
from tasks.cluster.devices import WorkerSpec
from tasks.cluster.ownership import check_scheduler
from tasks.cluster.registry import ActorRegistry, Recipe
from tasks.engines.remote import EngineActor
from tasks.environments.episodes.episode_replica import EpisodePlayer
from tasks.environments.pools.pool_actor import PoolActor, PoolKeeper
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.rewards.judges.engine import JudgeActor
from tasks.rewards.judges.reward import judge_engine_of, judges_generate
from tasks.run.elastic_setup import RunElasticWorkers
from tasks.run.partial_responses import turns_folder
from tasks.run.run_context import RunContext
from tasks.run.sample_buffer import RoundKey
from tasks.run.sample_stream import ABORT_S, BUFFER, CAPACITIES, BufferActor

logger = logging.getLogger(__name__)

CLOSE_S = 20.0  # how long an engine, a judge or the buffer may take to close
OPEN_S = 30.0  # deadline of a call to the buffer, which drops old records at most
LEAVE_S = 3.0  # a learner closes after its present call; a stopped run does not wait for that
END_S = 30.0  # for all actors together; Prefect gives a cancelled run the same time


class Fleet:
    """Owns the run's actors; leaving the block closes them."""

    def __init__(self, client: Client, run: RunContext, specs: Sequence[WorkerSpec]) -> None:
        self._client = client
        self._registry = ActorRegistry(client, run.run_id)
        self.run = run  # with the engines as they are now
        self._specs = {spec.name: spec for spec in specs}
        self._start_s = run.deadlines.start_s
        self._are_joined = False  # whether the learners form their process group
        self._making = asyncio.Lock()  # one change of actors at a time
        self.elastic = RunElasticWorkers(
            client, run, lambda notice: self._call_buffer("announce_worker", notice)
        )
        self._keeper = PoolKeeper(
            run.environment_workers,
            self._lost_pools,
            self._replace,
            run.episodes.hosts.max_restarts,
        )

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._keeper.stop()
        self.elastic.stop(is_over=error is None)
        if self._client.status != "running":
            return  # workers end with their scheduler: there is no actor left to close
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._client.loop.asyncio_loop)
        with suppress(RuntimeError, OSError):  # what cannot be ended any more ends with its worker
            ending.result(END_S)
        with suppress(RuntimeError, OSError):  # of a lost cluster there is nothing to forget
            self._registry.close()

    async def start(self) -> None:
        """Create every actor and join the learners in one group. If a worker dies meanwhile,
        `replace_lost` creates the actors that are missing."""
        async with self._making:
            await self._make(self._names)
        await self._start_keepers()

    async def open_round(self, key: RoundKey, beside: Sequence[RoundKey] = ()) -> None:
        """Open a round in the sample buffer; all but those beside it are dropped there."""
        await self._call_buffer("open_round", key, tuple(beside))

    async def announce(self, version: int) -> None:
        """Notify rounds that overlap training that all engines hold this weight version."""
        await self._call_buffer("announce", version)

    async def abort_rounds(self, reason: str) -> None:
        """End every open round for all coordinators; none waits on a buffer that is lost."""
        with suppress(ActorLost, TimeoutError):
            await self._call_buffer("abort", reason, deadline_s=ABORT_S)

    async def replace_lost(self) -> tuple[str, ...]:
        """Create every lost actor anew, and all learner ranks if one is lost; returns their names.
        Raises ClusterLost when the scheduler is gone."""
        async with self._making:
            replaced = await self._replace_lost()
        await self._start_keepers()  # where the first start was not finished
        return replaced

    async def _replace_lost(self) -> tuple[str, ...]:
        await check_scheduler(self._client)
        missing = set(self._names) - self._registry.names  # after a start that was not finished
        lost = set(await self._registry.lost()) | missing
        if lost & set(self.run.learners) or not self._are_joined:
            self._are_joined = False
            lost |= set(self.run.learners)
        names = sorted(lost)
        if names:
            # an engine that missed a deadline is in its step still: it holds its memory, and with
            # its end come to theirs vLLM's groups, which are its process's
            anew = [name for name in names if name != BUFFER]
            await asyncio.to_thread(self._registry.restart_living, anew, self._start_s)
            deaths = (
                "; ".join(self._registry.accounts())
                or "none of their processes is known to have ended"
            )
            logger.warning("replacing lost actors names=%s: %s", ",".join(names), deaths)
            await self._make(names)
        return tuple(names)

    def account(self, error: BaseException) -> ActorLost:
        """The error that ends the run after this loss; it says how processes ended."""
        deaths = self._registry.accounts()
        reason = str(error).partition("\n")[0] if deaths else str(error)
        return ActorLost("; ".join((reason, *deaths)))

    async def relayout(self, members: Mapping[str, tuple[str, ...]]) -> None:
        """Close all engines and create others, on which no request may be running. members: by the
        name of each new engine, the workers whose devices it holds.

        Every engine worker gets a new process, which alone sees other devices and releases all
        memory. The new engines hold the model's first weights until the next publication. Raises
        TimeoutError with the engine that was not ready in time.
        """
        async with self._making:
            await self._close_all(self.run.engines)
            workers = [spec.name for spec in self._specs.values() if spec.role == "rollout"]
            await asyncio.to_thread(self._registry.restart, workers, self._start_s)
            self.run = self.run.with_engines(members)
            await asyncio.to_thread(self._create, tuple(members))

    async def _start_keepers(self) -> None:
        self._keeper.start()
        await self.elastic.start()

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of all actors of the run."""
        run = self.run
        return BUFFER, *run.learners, *run.engines, *run.judges, *run.environment_workers

    async def _make(self, names: Sequence[str]) -> None:
        """Make these actors, warm pools of environments, and join new learners."""
        await asyncio.to_thread(self._create, names)
        pools = [name for name in names if name in self.run.environment_workers]
        remotes = map(self._registry.remote, pools)
        await asyncio.gather(*(remote.call("warm", deadline_s=self._start_s) for remote in remotes))
        if self.run.learners and not self._are_joined:
            learners = [
                RemoteLearner(self._registry.remote(name), self.run.deadlines.learner_call_s)
                for name in self.run.learners
            ]
            meeting_point = await learners[0].rendezvous()
            joining = (learner.join(meeting_point, self._start_s) for learner in learners)
            await asyncio.gather(*joining)
            self._are_joined = True

    async def _lost_pools(self, names: Collection[str]) -> tuple[str, ...]:
        """The pools of environments that do not answer or are not there, by name."""
        missing = set(names) - self._registry.names
        return tuple(sorted(missing | set(await self._registry.lost(names))))

    async def _replace(self, names: Sequence[str]) -> None:
        """Make pools of environments anew, unless that has been done meanwhile."""
        async with self._making:
            lost = await self._lost_pools(names)
            await asyncio.to_thread(self._registry.restart_living, lost, self._start_s)
            await self._make(lost)

    def _create(self, names: Sequence[str]) -> None:
        for wave in creation_waves(self.run, names):
            workers = {name: "control" if name == BUFFER else name for name in wave}
            actors = {name: self._recipe(name) for name in wave}
            self._registry.create_all(workers, actors, self._start_s)

    def _recipe(self, name: str) -> Recipe:
        read = partial(self._registry.environment, deadline_s=self._start_s)
        return recipe_of(self.run, name, self._specs, read)

    async def _call_buffer(self, method: str, *args: object, deadline_s: float = OPEN_S) -> None:
        await self._registry.remote(BUFFER).call(method, *args, deadline_s=deadline_s)

    async def _end(self) -> None:
        with suppress(ActorLost, TimeoutError):  # without a buffer no coordinator waits
            await self._call_buffer("abort", "the run ends", deadline_s=LEAVE_S)
        learners = (self._close(name, LEAVE_S) for name in self.run.learners)
        await asyncio.gather(self._close_all((*self.run.engines, *self.run.judges)), *learners)
        await self._close_all((BUFFER, *self.run.environment_workers))

    async def _close_all(self, names: Sequence[str]) -> None:
        await asyncio.gather(*(self._close(name) for name in names))

    async def _close(self, name: str, deadline_s: float = CLOSE_S) -> None:
        """Close an actor if it is there. A failure keeps no other from closing."""
        if name not in self._registry.names:
            return
        try:
            await self._registry.remote(name).call("close", deadline_s=deadline_s)
        except (RuntimeError, OSError) as error:
            logger.warning("actor did not close name=%s reason=%s", name, error)


def creation_waves(run: RunContext, names: Sequence[str]) -> list[list[str]]:
    """Names of actors in the waves in which they are created, those of a wave side by side.

    On GPUs engines come first, then judges: while vLLM starts it counts all memory that goes as its
    own, the memory of another process on the same GPU too. Learners on GPUs of their own start
    beside the engines, and compile their kernels meanwhile.
    """
    kinds: list[Collection[str]] = []
    if any(device.startswith("cuda") for device in run.devices.values()):
        served = {device for name in (*run.engines, *run.judges) for device in run.devices_of(name)}
        apart = {name for name in run.learners if served.isdisjoint(run.devices_of(name))}
        kinds = [{*run.engines, *apart}, run.judges]
    waves = [[name for name in names if name in kind] for kind in kinds]
    waves.append([name for name in names if not any(name in kind for kind in kinds)])
    return [wave for wave in waves if wave]


# reads an environment variable on each of these workers
ReadVariable = Callable[[Sequence[str], str], tuple[str, ...]]


def recipe_of(
    run: RunContext, name: str, specs: Mapping[str, WorkerSpec], read_variable: ReadVariable
) -> Recipe:
    """The class and the constructor arguments of an actor. specs: the run's workers, by name.
    read_variable: reads an environment variable on given workers."""
    if name == BUFFER:
        return BufferActor, (CAPACITIES, run.run_id)
    if name in run.engines:
        return EngineActor, _engine_arguments(run, name, specs, read_variable)
    cores = specs[name].core_ids
    if name in run.judges:
        return JudgeActor, (
            judge_engine_of(run.rewards),
            run.judge_model_path,
            name,
            cores,
            judges_generate(run.rewards),
            run.deadlines.start_s,
        )
    if name in run.environment_workers:
        settings = tuple(run.environments.values())
        return PoolActor, (run.episodes.hosts, settings, run.run_id, name)
    rank = run.learners.index(name)
    device = run.devices[name].partition(":")[0]
    return LearnerActor, (
        run.learner,
        run.model_path,
        rank,
        len(run.learners),
        cores,
        device,
        run.sampling.temperature,
        run.learners_per_machine,
    )


def _engine_arguments(
    run: RunContext, name: str, specs: Mapping[str, WorkerSpec], read_variable: ReadVariable
) -> tuple[object, ...]:
    members = run.members.get(name, (name,))
    config = run.engine.model_copy(update={"tensor_parallel_size": len(members)})
    cores = tuple(core for member in members for core in specs[member].core_ids)
    on_gpus = len(members) > 1 and run.devices[name].startswith("cuda")
    seen = read_variable(members, "CUDA_VISIBLE_DEVICES") if on_gpus else ()
    # of those that a worker sees the first is its own: an engine that was here before may have
    # added its group's
    gpus = tuple(visible.partition(",")[0] for visible in seen)
    return config, run.model_path, name, cores, gpus, run.seed, _player(run)


def _player(run: RunContext) -> EpisodePlayer | None:
    """What makes an engine play the run's episodes; None for a run without environments."""
    if not run.environments:
        return None
    return EpisodePlayer(
        environments=run.environments,
        config=run.episodes,
        model_path=run.model_path,
        max_model_len=run.engine.max_model_len,
        run_id=run.run_id,
        pictures=run.engine.pictures,
        workers=run.environment_workers,
        turns_folder=turns_folder(run),
    )
