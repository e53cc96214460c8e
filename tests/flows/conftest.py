"""Runs through the real commands: a Prefect server for the session, the tiny model built once,
every run in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from flows.commands.local_stack import prefect_server
from flows.config.presets import preset_values
from flows.config.run_config import RunConfig
from tasks.cluster.devices import parse_role_map
from tasks.cluster.gpus import found_gpus
from tasks.cluster.ports import free_port
from tasks.tiny_models.models import resolve_model
from tests.flows.prefect_tables import copy_tables, make_tables
from tests.flows.train_origin import ROOT, Forked, Train, TrainOrigin

# of hundreds, which take a minute: enough that answers and moves are well formed
WARMED_UP = {"warm_up_steps": 60}
BRIEFLY = f"model.profile={json.dumps(WARMED_UP)}"
SMALL = (  # the tiny preset, small enough that a run is mostly its start
    "num_steps=2",
    "batch.prompts_per_step=4",
    "batch.responses_per_prompt=4",
    "sampling.max_response_tokens=48",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
    "keep.checkpoint_every_steps=1",
    "keep.report=false",
    BRIEFLY,
)
DRAWN = "keep.report=true"  # for the tests that look at the page
SIMULATED = (  # engines that answer the questions of the tiny preset and hold no model
    "engine.kind=simulated",
    "engine.responses=chain_sums",
    "engine.max_model_len=256",
    "cluster.device_kind=cpu",  # on a machine with GPUs, too
)
ADAPTER = "learner.lora.rank=4"
# two adapters of one run, and the learning rate of each
RATES = {"fast": 2e-2, "slow": 1e-4}
SWEEP = {name: {"learning_rate": rate} for name, rate in RATES.items()}
SWEPT = (ADAPTER, f"learner.lora.sweep={json.dumps(SWEEP)}")
# groups are trained as they are accepted, on devices that are freed from the first one on
STREAMED = (
    "stream_trainer.enabled=true",
    "stream_trainer.first_milestone=0",
    "stream_trainer.last_milestone=1",
)
Settings = tuple[str, ...]
TRAINED: tuple[Settings, ...] = ((), (ADAPTER,))
KINDS_TRAINED = ("weights", "adapter")
of_both_kinds = pytest.mark.parametrize("trained", TRAINED, ids=KINDS_TRAINED)
EXPERTS = f"model={json.dumps({'kind': 'tiny_experts', 'profile': WARMED_UP})}"
# a mixture, whole experts of which each rank of the learner owns
SPREAD_EXPERTS = (EXPERTS, "learner.parameters=sharded")
WITH_EXPERTS, KINDS_WITH_EXPERTS = (*TRAINED, SPREAD_EXPERTS), (*KINDS_TRAINED, "experts")
# of this process alone: others may have runs of the same name
HANDOVER = Path("/dev/shm") / f"rollflow-tests-{os.getpid()}"
NUM_GPUS = len(found_gpus().names)
# on two cores, beside other runs; a round that stalls is given up after 300 s, and played again
COMES_WITHIN_S, ENDS_WITHIN_S = 700.0, 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that has ended."""

    code: int  # exit status
    out: str  # stdout
    err: str  # stderr


def train_words(
    root: Path,
    *assignments: str,
    preset: str = "tiny-sync",
    resume: str = "",
    settings: str = "",
) -> list[str]:
    """What stands behind `rollflow train` for a small run."""
    if why := beyond_gpus(assignments, preset, NUM_GPUS):
        pytest.skip(why)
    words = ["--preset", preset, "--set", f"keep.artifact_root={root}"]
    words += ["--settings", settings] if settings else []
    words += ["--set", f"keep.weights_dir={HANDOVER}"]
    for assignment in (*SMALL, *assignments):
        words += ["--set", assignment]
    return words + (["--resume", resume] if resume else [])


def beyond_gpus(assignments: Sequence[str], preset: str, num_gpus: int) -> str:
    """Why a run has not GPUs enough for its roles; empty if it has, or takes cores. Roles that a
    preset has apart count, too: on one GPU they would take turns, which these tests do not expect.
    """
    if not num_gpus or "cluster.device_kind=cpu" in assignments:
        return ""
    mark, roles = "cluster.roles=", str(preset_values(preset)["cluster"]["roles"])
    named = [json.loads(each.removeprefix(mark)) for each in assignments if each.startswith(mark)]
    placed = parse_role_map(named[-1] if named else roles)
    if not named and {*placed["rollout"]} & {*placed["learner"]}:
        return ""  # they are spread over what is there
    needed = 1 + max(device for devices in placed.values() for device in devices)
    if needed <= num_gpus:
        return ""
    return f"roles {[roles, *named][-1]!r} name {needed} devices, GPUs here: {num_gpus}"


class Launcher:
    """Starts `rollflow train`."""

    def __init__(self, environment: dict[str, str], origin: TrainOrigin) -> None:
        self.environment = environment
        self.origin = origin

    def start(
        self,
        root: Path,
        *assignments: str,
        preset: str = "tiny-sync",
        resume: str = "",
        settings: str = "",
    ) -> Train:
        """A run in the background, its artifacts under root."""
        words = train_words(root, *assignments, preset=preset, resume=resume, settings=settings)
        return self.origin.start(words, root)

    def run(
        self,
        root: Path,
        *assignments: str,
        preset: str = "tiny-sync",
        resume: str = "",
        settings: str = "",
    ) -> Finished:
        """A run from beginning to end."""
        process = self.start(root, *assignments, preset=preset, resume=resume, settings=settings)
        try:
            out, err = process.communicate(timeout=ENDS_WITHIN_S)
        finally:
            process.kill()  # or it takes its core from every test after this one
        return Finished(code=process.wait(), out=out, err=err)

    def start_dask(
        self, command: Sequence[str], *, env: dict[str, str], stdout: BinaryIO, **_: object
    ) -> Forked:
        """`python -m dask ...` for `joined_cluster`, forked with its workers as runs are."""
        return self.origin.start_dask(command[3:], env, stdout)

    def run_command(self, root: Path, *assignments: str, preset: str) -> Finished:
        """The same as a user calls it: a program that imports for itself."""
        words = train_words(root, *assignments, preset=preset)
        command = [sys.executable, "-m", "flows.commands.train", *words]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=ENDS_WITHIN_S,
        )
        return Finished(code=ended.returncode, out=ended.stdout, err=ended.stderr)


WORKERS = ("control", *(  # those of the tiny preset, on two cores or on all GPUs
    f"{role}-{number}" for role in ("engine", "learner") for number in range(NUM_GPUS or 2)
))  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def tiny_models(worker_id: str) -> None:
    """Made before the first run: a host may take minutes, and a run has its time for itself. Each
    is made by one process, by another core where there are two; the one that is done first makes
    Prefect's tables."""
    presets = ("tiny-sync", "tiny-agent")
    for preset in reversed(presets) if worker_id == "gw1" else presets:
        config = RunConfig.model_validate({"preset": preset, "model": {"profile": WARMED_UP}})
        resolve_model(config.model, ROOT / config.keep.model_cache)
        make_tables()


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    root = tmp_path_factory.mktemp("prefect")
    copy_tables(root)
    with prefect_server(root, free_port()) as environment:
        HANDOVER.mkdir()
        origin = TrainOrigin(environment, HANDOVER)
        try:
            yield Launcher(environment, origin)
        finally:
            origin.close()
            shutil.rmtree(HANDOVER)


@pytest.fixture(autouse=True)
def no_run_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails leaves no run to those after it."""
    used = "launcher" in request.fixturenames
    origin = request.getfixturevalue("launcher").origin if used else None
    yield
    if origin is not None:
        origin.end_runs()


def booked_as_trained(metrics: Mapping[str, float]) -> float:
    """Tokens of the groups that a step accepted: those of one without an update have a column of
    their own."""
    return metrics["ledger/trained_tokens"] + metrics["ledger/no_update_tokens"]


def wait_until(is_so: Callable[[], bool], what: str, process: Train) -> None:
    """Fails with the run's own words when it ends before, or when the time is over."""
    ends = time.monotonic() + COMES_WITHIN_S
    while not is_so():
        if process.poll() is not None:
            raise AssertionError(
                f"the run ended with {process.returncode} before {what}: {process.stderr.read()}"
            )
        if time.monotonic() > ends:
            why = process.stacks()
            raise AssertionError(f"{what} did not come within {COMES_WITHIN_S:.0f} s: {why}")
        time.sleep(0.05)


def wait_for(found: Path, process: Train) -> None:
    """Until a file is there."""
    wait_until(found.exists, str(found), process)


def moment(run: Path, name: str) -> Path:
    """The file to wait for: a table of the run, or weights on their way to the engines."""
    return HANDOVER / f"rollflow-{run.name}" / name if name.endswith(".safetensors") else run / name


def worker_of(process: Train, name: str) -> psutil.Process:
    """The process of this Dask worker of a run: its output goes to a log of that name."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(OSError):
            if Path(os.readlink(f"/proc/{child.pid}/fd/1")).stem == name:
                return child
    raise AssertionError(f"no worker {name} among the processes of {process.pid}")
