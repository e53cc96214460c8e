"""Forks worker processes from a server process that has imported their modules already.

    flow ──forks or starts──▶ fork server ──forks──▶ control, engine-0, learner-0, ...

A worker's imports cost seconds of a core at every start, by a run or after a death; a forked worker
has them already. Imports read environment variables (thread counts, visible GPUs) once, in the
server. Workers that need different values are therefore new interpreters, as is Dask's default.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, Literal

from distributed.utils import get_mp_context

from tasks.cluster.devices import WorkerSpec
from tasks.cluster.process_environment import has_begun_with, name_process

METHOD = "distributed.worker.multiprocessing-method"  # Dask's setting
_begun: tuple[tuple[str, ...], dict[str, str]] | None = None  # modules, environment of the server


def start_method(specs: Sequence[WorkerSpec]) -> Literal["forkserver", "spawn"]:
    """How Dask starts these workers: "forkserver" if all have the same environment."""
    environments = {tuple(sorted(spec.environment.items())) for spec in specs}
    return "forkserver" if len(environments) == 1 else "spawn"


def start_fork_server(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start a fork server in this environment, which imports these modules; returns at once. A
    server that runs already is left as it is. The setting METHOD must be "forkserver"."""
    global _begun
    _begun = tuple(modules), dict(environment)
    get_mp_context().set_forkserver_preload(list(modules))
    with _environment(environment):
        forkserver.ensure_running()


def keep_fork_server() -> int | None:
    """Make sure that the fork server runs: if it is gone, start another with the same modules and
    environment. Returns its process id; None if workers are not forked."""
    if _begun is None or get_mp_context().get_start_method() != "forkserver":
        return None
    start_fork_server(*_begun)
    pid: int = vars(forkserver._forkserver)["_forkserver_pid"]
    return pid


def fork_fork_server(
    modules: Sequence[str], environment: Mapping[str, str], alone: Sequence[str] = ()
) -> None:
    """Import `modules` and fork the server, which imports `alone` besides. If this process has
    other threads, or began with another environment, the server is a new interpreter instead."""
    if threading.active_count() > 1 or not has_begun_with(environment):
        start_fork_server((*modules, *alone), environment)
        return
    for name in modules:
        import_module(name)
    with _forking(environment):
        start_fork_server((*modules, *alone), environment)


@contextmanager
def _forking(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block, multiprocessing forks this process to run an interpreter's program."""
    resource_tracker.ensure_running()  # before the patch: it must be a new interpreter
    start = util.spawnv_passfds

    def fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # Any: as there
        child = os.fork()
        if child == 0:
            util.spawnv_passfds = start  # the fork itself starts processes as usual
            _play(args[-1], environment, passfds)
        return child

    util.spawnv_passfds = fork
    try:
        yield
    finally:
        util.spawnv_passfds = start


def _play(program: str, environment: Mapping[str, str], passed: Sequence[int]) -> None:
    """Run a program in this forked process as a new interpreter would; never returns."""
    status = 1
    try:
        _close_other_ends(passed)
        os.environ.update(environment)
        name_process("fork-server")
        # keep workers from asking the Hugging Face hub: its client, which the flow has imported,
        # reads HF_HUB_OFFLINE only once
        vars(import_module("huggingface_hub.constants"))["HF_HUB_OFFLINE"] = True
        exec(program, {})  # multiprocessing's own: import its server's main, and call it
    except SystemExit:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _close_other_ends(passed: Sequence[int]) -> None:
    """Close the flow's end of the pipe that tells the server that the flow is gone, as an exec
    would: as long as the server holds it, the pipe never ends."""
    here = Path("/proc/self/fd")
    kept = {os.readlink(here / str(number)) for number in passed}
    for number in map(int, os.listdir(here)):
        with suppress(FileNotFoundError):  # the listing itself
            if number not in passed and os.readlink(here / str(number)) in kept:
                os.close(number)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables within the block: a process inherits those of its parent."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
