"""Seconds of an update and of a publication through the gate, and of their parts, without anything
else of a step.

    python -m research.benchmarks.update_and_publication                   # SmolLM2 on two cores
    python -m research.benchmarks.update_and_publication --parameters sharded --model DIRECTORY
    python -m research.benchmarks.update_and_publication --transport file ipc      # in turn
    python -m research.benchmarks.update_and_publication --lora-rank 16            # an adapter
    python -m research.benchmarks.update_and_publication --device cuda --cores 0 --transport ipc
    python -m research.benchmarks.update_and_publication --device cuda --out FOLDER

A learner rank and an engine on every core, or on every GPU of these numbers, each in a process of
its own as in a run, and the code of a run: `update_all` and `publish_version`. Of several
transports every step takes the next. A part is what its caller waits for it, in parallel with the
others. Leaves out Prefect and Dask, whose calls cost milliseconds.

With --out it publishes models of the long-tail shapes by every transport and prints figures: one
engine, and one rank that holds the weights and trains nothing, 2 bytes a parameter each.
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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import torch

from artifacts.models.registry import SmolLM2Config
from artifacts.records import Running, WeightsRef, pack
from research.benchmarks.learner_throughput import long_tailed_groups
from research.gpu.figures import Figure, not_measured
from research.gpu.long_tail import SHAPES, make_model
from tasks.cluster.cores import multiply_bf16
from tasks.cluster.process_environment import KEEP_KERNELS, KEEP_MEMORY, threads
from tasks.engines.base import Attestation
from tasks.engines.transports.base import TransferPlan, TransportKind
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.collective import update_all
from tasks.learner.learner_config import ComputeDtype, LearnerConfig, Placement
from tasks.learner.lora_config import LoraConfig
from tasks.learner.policy import load_reference
from tasks.learner.publication import publish_version
from tasks.learner.ranks import Ranks
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.learner.trainer import LearnerRank
from tasks.learner.weight_check import WeightCheckConfig
from tasks.tiny_models.models import resolve_model

_DEADLINE_S = 600.0
_JOIN_S = 60.0  # of the ranks' meeting, and of each of their collectives
BOUNDS_S = {"1.5b": 0.3, "7b": 1.0}  # of a publication without a file
WEIGHTS = LearnerConfig()
_START_WEIGHTS = "start"  # what each process says when it is ready

Parts = defaultdict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An object in another process; every call to it is timed."""

    name: str
    connection: Connection
    parts: Parts  # seconds of each call, by name and method
    asking: Lock = field(default_factory=Lock)  # one call at a time

    async def call(
        self, method: str, *args: object, deadline_s: float
    ) -> Any:  # Any: what the method returns
        started = time.perf_counter()
        answer = await asyncio.wait_for(asyncio.to_thread(self._ask, method, args), deadline_s)
        self.parts[f"{self.name} {method}"].append(time.perf_counter() - started)
        return answer

    def _ask(self, method: str, args: tuple[object, ...]) -> object:
        with self.asking:
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
    connection: Connection,
    model: str,
    rank: int,
    cores: tuple[int, ...],
    config: LearnerConfig,
    device: str = "cpu",
) -> None:
    own = _placed(device, cores[rank])
    _serve(connection, LearnerActor(config, model, rank, len(cores), own, device=device))


def _serve_engine(
    connection: Connection,
    model: str,
    rank: int,
    core: int,
    device: str,
    learner: LearnerConfig = WEIGHTS,
) -> None:
    dtype = "bfloat16" if learner.compute == "bf16" else "float32"
    shape = learner.lora.engine_shape
    config = VllmEngineConfig(gpu_memory_utilization=0.4, adapter=shape, dtype=dtype)
    engine = VllmEngine(config, model, f"engine-{rank}", _placed(device, core), seed=0)
    engine.start()
    _serve(connection, engine)


class HeldPolicy(LearnerActor):
    """A learner rank that holds the weights and trains nothing; every publication is a version."""

    def __init__(self, model: str, device: str) -> None:
        rank = LearnerRank.__new__(LearnerRank)
        self._config = rank._config = LearnerConfig()
        rank._temperature = 1.0
        rank._ranks = Ranks(0, 1, torch.device(device))
        rank._policy = load_reference(model, "bf16", rank._ranks)  # type: ignore[assignment]  # it scores
        rank._transports, rank._transport = {}, None
        self._rank, self._version = rank, 0

    def next_version(self) -> None:
        self._version += 1


def _serve_held(connection: Connection, model: str, core: int, device: str) -> None:
    if own := _placed(device, core):
        os.sched_setaffinity(0, own)
    _serve(connection, HeldPolicy(model, device))


def _placed(device: str, number: int) -> tuple[int, ...]:
    """The cores of this process: one, or all beside the GPU of that number, which it sees alone."""
    if device == "cpu":
        return (number,)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
    return ()


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
    model: str,
    rank: int,
    cores: tuple[int, ...],
    config: LearnerConfig,
    parts: Parts,
    device: str = "cpu",
) -> Served:
    return _start(_serve_learner, f"learner-{rank}", (model, rank, cores, config, device), parts)


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
    kinds: Sequence[TransportKind] = ("file",),
) -> None:
    """Updates and publications, one after the other, by these transports in turn; the first of each
    is not counted."""
    groups = long_tailed_groups(1, 2, seed=0)
    gate, members = WeightCheckConfig(), tuple(f"{engine.name}/0" for engine in engines)
    for step in range(1, len(kinds) * (repeats + 1) + 1):
        kind = kinds[(step - 1) % len(kinds)]
        if step == len(kinds) + 1:
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
            probes=_probes(gate),
            ranks_in_step=ranks_in_step,
            plan=TransferPlan(kind=kind, members=members),
        )
        parts["update"].append(updated - started)
        name = "publication" if len(kinds) == 1 else f"publication by {kind}"
        parts[name].append(time.perf_counter() - updated)
        parts["difference of the probes, nats"].append(published.probe_difference_nats or 0.0)


def _probes(gate: WeightCheckConfig) -> tuple[tuple[int, ...], ...]:
    probed = long_tailed_groups(gate.num_probes, 2, seed=1)
    return tuple(group.prompt.token_ids[: gate.probe_tokens] for group in probed)


def _in_memory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


async def updates_and_publications(
    model: str,
    engine_cores: tuple[int, ...],
    cores: tuple[int, ...],
    repeats: int,
    config: LearnerConfig,
    device: str,
    kinds: Sequence[TransportKind],
) -> Parts:
    """Seconds of updates by a learner rank on each of the cores, or GPUs of these numbers, and of
    publications to an engine on each of the engine cores, by the transports in turn."""
    parts: Parts = defaultdict(list)
    engines = [
        _start(_serve_engine, f"engine-{rank}", (model, rank, core, device, config), parts)
        for rank, core in enumerate(engine_cores)
    ]
    for served in engines:  # before learners take memory of their GPUs
        await asyncio.to_thread(served.connection.recv)
    learners = [
        start_learner(model, rank, cores, config, parts, device) for rank in range(len(cores))
    ]
    for served in learners:
        await asyncio.to_thread(served.connection.recv)
    with _in_memory() as out:
        remotes = await meet(learners, Path(out))
        ready = [ServedEngine(name=served.name, served=served) for served in engines]
        in_step = config.ranks_in_step
        await measure(remotes, ready, Path(out), parts, repeats, ranks_in_step=in_step, kinds=kinds)
    for served in (*engines, *learners):
        served.connection.close()
    return parts


async def publications(
    model: str, device: str, places: tuple[int, int], kinds: Sequence[TransportKind], repeats: int
) -> dict[TransportKind, list[float]]:
    """Seconds of publications of unchanged weights, the weight check included, by transport, in
    turn. places: core or GPU of the engine, and of the rank that holds the weights."""
    engine = _start(_serve_engine, "engine-0", (model, 0, places[0], device), defaultdict(list))
    await asyncio.to_thread(engine.connection.recv)
    held = _start(_serve_held, "learner-0", (model, places[1], device), defaultdict(list))
    await asyncio.to_thread(held.connection.recv)
    learner = RemoteLearner(held, _DEADLINE_S)  # type: ignore[arg-type]  # as in `meet`
    gate = WeightCheckConfig()
    seconds: dict[TransportKind, list[float]] = {kind: [] for kind in kinds}
    with _in_memory() as out:
        for number in range(len(kinds) * (repeats + 1)):
            kind = kinds[number % len(kinds)]
            await held.call("next_version", deadline_s=_DEADLINE_S)
            began = time.perf_counter()
            await publish_version(
                [learner],
                [ServedEngine(name=engine.name, served=engine)],  # type: ignore[list-item]  # as above
                Path(out),
                check=gate,
                probes=tuple(tuple(range(first, first + gate.probe_tokens)) for first in (3, 9)),
                ranks_in_step=False,
                plan=TransferPlan(kind=kind, members=("engine-0/0",)),
            )
            if number >= len(kinds):  # the first of each makes pages, groups and maps
                seconds[kind].append(time.perf_counter() - began)
    for served in (engine, held):
        served.connection.close()
    return seconds


def print_figures(device: str, out: Path) -> None:
    """Make a model of each long-tail shape in the folder, publish it by every transport that the
    devices allow, and print the medians."""
    shapes, places = ["0.5b", "1.5b", "7b"], (0, 0)
    kinds: list[TransportKind] = ["file", "ipc"]
    if device == "cpu":
        shapes, places, kinds = ["tiny"], (0, 1), [*kinds, "broadcast"]
    for shape in shapes:
        model = str(make_model(out / shape, SHAPES[shape], 256.0, device))
        if device == "cuda":
            torch.cuda.empty_cache()
        measured = dict(asyncio.run(publications(model, device, places, kinds, repeats=5)))
        if torch.cuda.device_count() > 1:  # NCCL wants a GPU for each
            apart = publications(model, device, (0, 1), ["broadcast"], repeats=5)
            measured |= asyncio.run(apart)
        elif device == "cuda":
            why = "it takes two GPUs, this machine has one"
            not_measured(f"publication of {shape} by broadcast", why)
        for kind, seconds in measured.items():
            Figure(
                name=f"publication of {shape} by {kind}, with the weight check",
                value=statistics.median(seconds),
                unit="s",
                at_most=None if kind == "file" else BOUNDS_S.get(shape),
            ).print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parameters", choices=get_args(Placement), default="replicated")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory, not SmolLM2")
    parser.add_argument("--cache", type=Path, default=Path(".cache/models"))
    parser.add_argument("--transport", nargs="+", choices=get_args(TransportKind), default=["file"])
    parser.add_argument("--lora-rank", type=int, default=0, help="0: all weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="print figures of made models, kept here")
    given = parser.parse_args(arguments)
    if given.out:
        print_figures(given.device, given.out)
        return
    if given.parameters == "sharded" and len(given.cores) < 2:
        parser.error(
            f"--parameters sharded needs two --cores or more, got {given.cores}: there is nobody to"
            " share with; name more cores, or leave parameters replicated"
        )
    os.environ.update(KEEP_MEMORY | KEEP_KERNELS | threads(1))
    model = given.model or resolve_model(SmolLM2Config(), given.cache)
    is_mixed = (given.device, given.parameters) == ("cpu", "replicated") and not multiply_bf16()
    compute: ComputeDtype = "mixed" if is_mixed else "bf16"
    lora = LoraConfig(rank=given.lora_rank)
    config = LearnerConfig(parameters=given.parameters, compute=compute, lora=lora)
    cores, kinds = tuple(given.cores), tuple(given.transport)
    asked = updates_and_publications(
        str(model), cores, cores, given.repeats, config, given.device, kinds
    )
    parts = asyncio.run(asked)
    for name, seconds in parts.items():
        spread = f"({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"{name:40} {statistics.median(seconds):.3f} {spread}")


if __name__ == "__main__":
    main()
