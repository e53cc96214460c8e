"""Seconds of an update and of a publication through the gate, and of their parts, without anything
else of a step.

    python -m benchmarks.update_and_publication                   # SmolLM2 on two cores
    python -m benchmarks.update_and_publication --cores 0 1 2 3 --repeats 15

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
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from artifacts.models.choice import SmolLM2Config
from artifacts.records import WeightsRef, pack
from benchmarks.learner_throughput import long_tailed_groups
from tasks.cluster.dask_cluster import KEEP_MEMORY
from tasks.engines.base import Attestation
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.collective import update_all
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.models import resolve_model
from tasks.learner.publication import publish_version
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.learner.weight_sync import GateConfig

_DEADLINE_S = 600.0
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
        self, weights: WeightsRef, probes: tuple[tuple[int, ...], ...]
    ) -> Attestation:
        attested: Attestation = await self.served.call(
            "load_weights", weights, probes, deadline_s=_DEADLINE_S
        )
        return attested


def _serve_learner(connection: Connection, model: str, rank: int, cores: tuple[int, ...]) -> None:
    _serve(
        connection,
        LearnerActor(LearnerConfig(), model, rank, len(cores), (cores[rank],), device="cpu"),
    )


def _serve_engine(connection: Connection, model: str, rank: int, cores: tuple[int, ...]) -> None:
    engine = VllmEngine(VllmEngineConfig(), model, f"engine-{rank}", (cores[rank],), seed=0)
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


def _start(kind: str, model: str, rank: int, cores: tuple[int, ...], parts: Parts) -> Served:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    target = {"learner": _serve_learner, "engine": _serve_engine}[kind]
    context.Process(target=target, args=(theirs, model, rank, cores), daemon=True).start()
    theirs.close()
    return Served(name=f"{kind}-{rank}", connection=ours, parts=parts)


async def measure(
    learners: Sequence[RemoteLearner],
    engines: Sequence[ServedEngine],
    directory: Path,
    parts: Parts,
    repeats: int,
) -> None:
    """Updates and publications, one after the other; the first of each is not counted."""
    groups = long_tailed_groups(1, 2, seed=0)
    gate = GateConfig()
    probed = long_tailed_groups(gate.num_probes, 2, seed=1)
    probes = tuple(group.prompt.token_ids[: gate.probe_tokens] for group in probed)
    for step in range(1, repeats + 2):
        for learner in learners:
            await learner._remote.call("accumulate", step, pack(groups), deadline_s=_DEADLINE_S)
        if step == 2:
            parts.clear()
        started = time.perf_counter()
        await update_all(learners, step)
        updated = time.perf_counter()
        published = await publish_version(
            learners,
            engines,  # type: ignore[arg-type]  # as much of an engine as it needs
            directory,
            gate=gate,
            probes=probes,
            ranks_in_step=False,
        )
        parts["update"].append(updated - started)
        parts["publication"].append(time.perf_counter() - updated)
        parts["difference of the probes, nats"].append(published.probe_difference_nats or 0.0)


async def _run(model: str, cores: tuple[int, ...], repeats: int) -> Parts:
    parts: Parts = defaultdict(list)
    learners = [_start("learner", model, rank, cores, parts) for rank in range(len(cores))]
    engines = [_start("engine", model, rank, cores, parts) for rank in range(len(cores))]
    for served in (*learners, *engines):
        await asyncio.to_thread(served.connection.recv)
    remotes = [RemoteLearner(served, _DEADLINE_S) for served in learners]  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as out:
        await asyncio.gather(*(rank.join(f"file://{out}/meeting", 60.0) for rank in remotes))
        ready = [ServedEngine(name=served.name, served=served) for served in engines]
        await measure(remotes, ready, Path(out), parts, repeats)
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cache", type=Path, default=Path(".cache/models"))
    given = parser.parse_args(arguments)
    os.environ.update({name: str(value) for name, value in KEEP_MEMORY.items()})
    model = str(resolve_model(SmolLM2Config(), given.cache))
    parts = asyncio.run(_run(model, tuple(given.cores), given.repeats))
    for name, seconds in parts.items():
        spread = f"({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"{name:40} {statistics.median(seconds):.3f} {spread}")


if __name__ == "__main__":
    main()
