"""The kinds of kills: the small run that each is tried on, who is killed, how the run must go on.

    scene ─▶ run, table of victims ─▶ injections, of which the last is the kill ─▶ exit codes

A further kind is a further line of KINDS. Leaves out the moment of a kill and what comes of it
(`timed_kill`).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from research.kills.elastic_injections import victims
from research.kills.elastic_pool import elastic_pool
from research.kills.episode_injections import VICTIMS as OF_EPISODES
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injections import Victim
from research.kills.joined_cluster import JoinedCluster

SMALL = (
    "batch.prompts_per_step=4",
    "batch.responses_per_prompt=4",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
    "keep.checkpoint_every_steps=2",
    "keep.report=false",
    'model.profile={"warm_up_steps": 60}',  # of hundreds: what is said does not matter
)
SHORT = "sampling.max_response_tokens=48"
SIMULATED = (
    SHORT,
    "engine.kind=simulated",
    "engine.responses=chain_sums",
    "engine.max_model_len=256",
)
SLOW, SLOWER = (
    "engine.profile.step_s=0.03",
    "engine.profile.step_s=0.1",
)  # of a token: rounds take seconds
FORK_SERVERS = ("fork-server", "multiprocessing.forkserver")  # forked, started from nothing
WORKERS = ("control", "engine-0", "engine-1", "learner-0", "learner-1")  # of the tiny preset
PATIENCE = "deadlines.start_s=150"  # for how long a lost scheduler is looked for
# else it depends on who generates when how gradients are summed
ONE_SHOT = ("stream_trainer.enabled=false", "seeding.enabled=false")
KILLED, REFUSED = -signal.SIGKILL, 2  # exit codes

# of a step, with the longest delay from its beginning to a kill, seconds: about as long as it is
STAGES: Mapping[str, float] = {"rollout": 1.5, "training": 0.1, "publication": 0.1, "commit": 0.3}
PLAYING = {"rollout": 0.2}  # rounds of tiny-agent are short

Victims = Mapping[str, Victim]
Others = Callable[[], Collection[psutil.Process]]  # children of this process, not of the run
Scene = Callable[
    [RunOrder, Mapping[str, str], Others], AbstractContextManager[tuple[InjectedRun, Victims]]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledJob:
    """The configuration of runs that are compared with one another."""

    preset: str
    settings: tuple[str, ...]  # FIELD=VALUE, beside SMALL
    num_steps: int = 6
    is_exact: bool = True  # whether all steps come out the same, whoever is killed


def fork_servers(run: InjectedRun) -> list[psutil.Process]:
    """The process that the run's workers are forked from."""
    children = psutil.Process(run.flow.pid).children()
    return [child for child in children if any(_is(child, name) for name in FORK_SERVERS)]


def prefect_servers(run: InjectedRun) -> list[psutil.Process]:
    """The server that a demo has for itself."""
    children = psutil.Process(run.flow.pid).children()
    return [child for child in children if _is(child, "flows.commands.prefect_server")]


def _is(process: psutil.Process, name: str) -> bool:
    """Whether a process is called so, or runs a module of this name."""
    with suppress(psutil.Error):
        return any(name in word for word in (process.name(), *process.cmdline()))
    return False


VICTIMS: Victims = {
    **OF_EPISODES,
    "learner killed": Victim(weight=1, find=lambda run: run.workers("learner")),
    "control killed": Victim(weight=1, find=lambda run: run.workers("control")),
    "Prefect server killed": Victim(weight=1, find=prefect_servers),
    "run's fork server killed": Victim(weight=1, find=fork_servers),
}


@contextmanager
def alone(
    order: RunOrder, environment: Mapping[str, str], others: Others
) -> Iterator[tuple[InjectedRun, Victims]]:
    """A run of `rollflow train`, whose Prefect server outlives it."""
    yield InjectedRun(order, environment, others), VICTIMS


@contextmanager
def demo(
    order: RunOrder, environment: Mapping[str, str], others: Others
) -> Iterator[tuple[InjectedRun, Victims]]:
    """A run of `rollflow demo`, with a Prefect server of its own."""
    root = order.root / order.name
    root.mkdir()
    words = ("flows.commands.demo", "--root", str(root), "--prefect-port", "0")
    bound = ("tasks.cluster.parent", str(os.getpid()), *words)
    yield InjectedRun(replace(order, root=root, command=bound), {}, others), VICTIMS


@contextmanager
def with_elastic_worker(
    order: RunOrder, environment: Mapping[str, str], others: Others
) -> Iterator[tuple[InjectedRun, Victims]]:
    """A run that an elastic worker may join."""
    with elastic_pool(1, rate_mbit=None) as park:
        own = replace(order, settings=(*order.settings, *park.settings))
        run = InjectedRun(own, environment, lambda: [*others(), *park.processes()])
        yield run, victims(park)


class JoinedRun(InjectedRun):
    """A run on a Dask cluster that is not its own; the next attempt has another one."""

    def __init__(
        self, order: RunOrder, environment: Mapping[str, str], others: Others, scratch: Path
    ) -> None:
        super().__init__(order, environment, lambda: [*others(), *self.of_cluster()])
        self._clusters: list[JoinedCluster] = []
        self._start = partial(JoinedCluster, environment, scratch, WORKERS)

    def begin(self) -> None:
        self.close()
        self._clusters.append(self._start())
        super().begin()

    def command(self) -> list[str]:
        address = f"cluster.scheduler_address={self._clusters[-1].address}"
        cores = "cluster.device_kind=cpu"
        return [*super().command(), "--set", cores, "--set", address, "--set", PATIENCE]

    def of_cluster(self) -> list[psutil.Process]:
        """What the cluster was started as, its scheduler first."""
        found = []
        for process in (each for cluster in self._clusters for each in cluster.processes):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(process.pid))
        return found

    def close(self) -> None:
        """End the cluster."""
        while self._clusters:
            self._clusters.pop().close()


@contextmanager
def joined(
    order: RunOrder, environment: Mapping[str, str], others: Others
) -> Iterator[tuple[InjectedRun, Victims]]:
    """A run on a cluster that it joins."""
    with tempfile.TemporaryDirectory() as scratch:
        run = JoinedRun(order, environment, others, Path(scratch))
        try:
            yield run, {"scheduler killed": Victim(weight=1, find=lambda _: run.of_cluster()[:1])}
        finally:
            run.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A process that is killed, and what must come of it."""

    name: str
    job: KilledJob
    injections: tuple[str, ...]  # by the names of the scene's table
    scene: Scene = alone
    stages: Mapping[str, float] = field(default_factory=lambda: STAGES)  # in which it is killed
    num_runs: int = 1  # in which it is killed
    exits: tuple[int, ...] = (0,)  # codes of the command, attempt by attempt
    says: str = ""  # the run, where it ends by itself


PLAIN = KilledJob(preset="tiny-sync", settings=(*SIMULATED, SLOW))
GENERATED = KilledJob(preset="tiny-sync", settings=(SHORT,), is_exact=False)
EPISODES = KilledJob(preset="tiny-agent", settings=("max_infra_fraction=0.9",), is_exact=False)
ELASTIC = KilledJob(
    preset="tiny-elastic",
    settings=(*SIMULATED, SLOWER, "scheduling.kind=sync", *ONE_SHOT),
    num_steps=9,
)

KINDS: Sequence[Kind] = (
    Kind(name="engine", job=GENERATED, injections=("engine killed",), num_runs=4),
    Kind(name="learner", job=PLAIN, injections=("learner killed",), num_runs=4),
    Kind(name="control", job=PLAIN, injections=("control killed",), num_runs=4),
    Kind(name="flow", job=PLAIN, injections=("flow killed",), exits=(KILLED, 0)),
    Kind(name="command", job=PLAIN, injections=("flow killed",), scene=demo, exits=(KILLED, 0)),
    Kind(name="prefect", job=PLAIN, injections=("Prefect server killed",), scene=demo),
    Kind(name="host", job=EPISODES, injections=("host killed",), stages=PLAYING),
    Kind(name="host-server", job=EPISODES, injections=("fork server killed",), stages=PLAYING),
    Kind(
        name="elastic",
        job=ELASTIC,
        injections=("elastic worker joined", "elastic worker killed"),
        scene=with_elastic_worker,
    ),
    Kind(name="fork-server", job=PLAIN, injections=("run's fork server killed",) * 2),
    Kind(
        name="scheduler",
        job=PLAIN,
        injections=("scheduler killed",),
        scene=joined,
        exits=(REFUSED, 0),
        says="start the cluster again and resume the run",
    ),
)
