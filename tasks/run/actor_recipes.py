"""What each actor of a run is made of: its class and its arguments, by its name. The registry makes
it of them on its worker (`fleet`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tasks.cluster.devices import WorkerSpec
from tasks.cluster.registry import Recipe
from tasks.engines.remote import EngineActor
from tasks.environments.episodes.episode_replica import EpisodePlayer
from tasks.environments.pools.pool_actor import PoolActor
from tasks.learner.remote import LearnerActor
from tasks.rewards.judges.engine import JudgeActor
from tasks.rewards.judges.reward import judge_engine_of, judges_generate
from tasks.run.partial_responses import turns_folder
from tasks.run.run_context import RunContext
from tasks.run.sample_stream import BUFFER, CAPACITIES, BufferActor

# what an environment variable is on each of these workers
ReadVariable = Callable[[Sequence[str], str], tuple[str, ...]]


def recipe_of(
    run: RunContext, name: str, specs: Mapping[str, WorkerSpec], read_variable: ReadVariable
) -> Recipe:
    """Of the actor of this name. specs: of the workers, by name."""
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
        workers=run.environment_workers,
        turns_folder=turns_folder(run),
    )
