"""Seconds of an update and of a publication through the gate, and of their parts, without anything
else of a step.

    python -m research.benchmarks.update_and_publication                   # SmolLM2 on two cores
    python -m research.benchmarks.update_and_publication --cores 0 1 2 3 --repeats 15
    python -m research.benchmarks.update_and_publication --parameters sharded --model DIRECTORY

A learner rank and an engine on every core, each in a process of its own as in a run, and the code
of a run: `update_all` and `publish_version`. A part is what its caller waits for it, in parallel
with the others. Leaves out Prefect and Dask, whose calls cost milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

from artifacts.models.registry import SmolLM2Config
from artifacts.records import Running, WeightsRef, pack
from research.benchmarks.learner_throughput import long_tailed_groups
from tasks.cluster.process_environment import KEEP_KERNELS, KEEP_MEMORY, threads
from tasks.engines.base import Attestation
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.collective import update_all
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.policy import Placement
from tasks.learner.publication import publish_version
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.learner.weight_check import WeightCheckConfig
from tasks.tiny_models.models import resolve_model

_DEADLINE_S = 600.0
_JOIN_S = 60.0  # of the ranks' meeting, and of each of their collectives
_START_WEIGHTS = "start"  # what each process says when it is ready

Parts = defaultdict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An object in another process; every call to it is timed."""

    name: str
    connection: Connection
    parts: Parts  # seconds of each call, by name and method

    async def call(
        self, method: str, *args: object, deadline_s: float
    ) -> Any:  # Any: what the method returns
        started = time.perf_counter()
        answer = await asyncio.wait_for(asyncio.to_thread(self._ask, method, args), deadline_s)
        self.parts[f"{self.name} {method}"].append(time.perf_counter() - started)
        return answer

    def _ask(self, method: str, args: tuple[object, ...]) -> object:
        self.connection.send((method, args))
        return self.connection.recv()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """As much of an engine as a publication needs."""

    name: str
    served: Served

    async def load_weights(
        self, weights: WeightsRef, probes: tuple[tuple[int, ...], ...], running: Running
    ) -> Attestation:
        attested: Attestation = await self.served.call(
            "load_weights", weights, probes, running, deadline_s=_DEADLINE_S
        )
        return attested


def _serve_learner(
    connection: Connection, model: str, rank: int, cores: tuple[int, ...], config: LearnerConfig
) -> None:
    _serve(connection, LearnerActor(config, model, rank, len(cores), (cores[rank],), device="cpu"))


def _serve_engine(connection: Connection, model: str, rank: int, core: int) -> None:
    engine = VllmEngine(VllmEngineConfig(), model, f"engine-{rank}", (core,), seed=0)
    engine.start()
    _serve(connection, engine)


def _serve(connection: Connection, served: object) -> None:
    """Answer calls, one at a time, until the caller hangs up."""
    connection.send(_START_WEIGHTS)
    with asyncio.Runner() as runner:
        while (asked := _next_of(connection)) is not None:
            method, args = asked
            answer = getattr(served, method)(*args)
            connection.send(
                runner.run(_awaited(answer)) if isinstance(answer, Awaitable) else answer
            )


def _next_of(connection: Connection) -> tuple[str, tuple[object, ...]] | None:
    try:
        asked: tuple[str, tuple[object, ...]] = connection.recv()
    except EOFError:
        return None
    return asked


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def start_learner(
    model: str, rank: int, cores: tuple[int, ...], config: LearnerConfig, parts: Parts
) -> Served:
    return _start(_serve_learner, f"learner-{rank}", (model, rank, cores, config), parts)


def _start(
    target: Callable[..., None], name: str, arguments: tuple[object, ...], parts: Parts
) -> Served:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=target, args=(theirs, *arguments), daemon=True).start()
    theirs.close()
    return Served(name=name, connection=ours, parts=parts)


async def meet(learners: Sequence[Served], directory: Path) -> list[RemoteLearner]:
    """The ranks, in one group."""
    ranks = [RemoteLearner(served, _DEADLINE_S) for served in learners]  # type: ignore[arg-type]
    await asyncio.gather(*(rank.join(f"file://{directory}/meeting", _JOIN_S) for rank in ranks))
    return ranks


async def measure(
    learners: Sequence[RemoteLearner],
    engines: Sequence[ServedEngine],
    directory: Path,
    parts: Parts,
    repeats: int,
    *,
    ranks_in_step: bool,
) -> None:
    """Updates and publications, one after the other; the first of each is not counted."""
    groups = long_tailed_groups(1, 2, seed=0)
    gate = WeightCheckConfig()
    probed = long_tailed_groups(gate.num_probes, 2, seed=1)
    probes = tuple(group.prompt.token_ids[: gate.probe_tokens] for group in probed)
    for step in range(1, repeats + 2):
        if step == 2:
            parts.clear()
        # together: ranks in step can compute in no other way
        await asyncio.gather(
            *(
                learner._remote.call("accumulate", step, pack(groups), deadline_s=_DEADLINE_S)
                for learner in learners
            )
        )
        started = time.perf_counter()
        await update_all(learners, step)
        updated = time.perf_counter()
        published = await publish_version(
            learners,
            engines,  # type: ignore[arg-type]  # as much of an engine as it needs
            directory,
            check=gate,
            probes=probes,
            ranks_in_step=ranks_in_step,
        )
        parts["update"].append(updated - started)
        parts["publication"].append(time.perf_counter() - updated)
        parts["difference of the probes, nats"].append(published.probe_difference_nats or 0.0)


async def _run(model: str, cores: tuple[int, ...], repeats: int, config: LearnerConfig) -> Parts:
    parts: Parts = defaultdict(list)
    learners = [start_learner(model, rank, cores, config, parts) for rank in range(len(cores))]
    engines = [
        _start(_serve_engine, f"engine-{rank}", (model, rank, core), parts)
        for rank, core in enumerate(cores)
    ]
    for served in (*learners, *engines):
        await asyncio.to_thread(served.connection.recv)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as out:
        remotes = await meet(learners, Path(out))
        ready = [ServedEngine(name=served.name, served=served) for served in engines]
        in_step = config.ranks_in_step
        await measure(remotes, ready, Path(out), parts, repeats, ranks_in_step=in_step)
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parameters", choices=get_args(Placement), default="replicated")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory, not SmolLM2")
    parser.add_argument("--cache", type=Path, default=Path(".cache/models"))
    given = parser.parse_args(arguments)
    if given.parameters == "sharded" and len(given.cores) < 2:
        parser.error(
            f"--parameters sharded needs two --cores or more, got {given.cores}: there is nobody to"
            " share with; name more cores, or leave parameters replicated"
        )
    os.environ.update(KEEP_MEMORY | KEEP_KERNELS | threads(1))
    model = given.model or resolve_model(SmolLM2Config(), given.cache)
    config = LearnerConfig(parameters=given.parameters)
    parts = asyncio.run(_run(str(model), tuple(given.cores), given.repeats, config))
    for name, seconds in parts.items():
        spread = f"({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"{name:40} {statistics.median(seconds):.3f} {spread}")


if __name__ == "__main__":
    main()
