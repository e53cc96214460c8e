"""Workers are forked from a process that has imported what each of them needs.

    flow ──forks or starts──▶ fork server ──forks──▶ control, engine-0, learner-0, ...

A worker's imports take seconds of a core each time one is started, by a run or after a death; a
fork takes none. The flow needs nearly all of these imports itself, so the server is forked from the
flow's own process, where that has no other thread yet and began with the environment that workers
need; else it is started from nothing.
What an import reads of the environment (numbers of threads, visible GPUs) is the server's, so
workers that need different ones are started from nothing, as Dask does by itself.
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
    """How Dask is to start these workers."""
    environments = {tuple(sorted(spec.environment.items())) for spec in specs}
    return "forkserver" if len(environments) == 1 else "spawn"


def start_fork_server(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have a server begin in this environment and import these modules; returns at once. One that
    runs already is left as it is. The setting METHOD must say forkserver."""
    global _begun
    _begun = tuple(modules), dict(environment)
    get_mp_context().set_forkserver_preload(list(modules))
    with _environment(environment):
        forkserver.ensure_running()


def keep_fork_server() -> int | None:
    """Have a server like the last one run, started from nothing where that is gone; its process.
    None where workers are not forked."""
    if _begun is None or get_mp_context().get_start_method() != "forkserver":
        return None
    start_fork_server(*_begun)
    pid: int = vars(forkserver._forkserver)["_forkserver_pid"]
    return pid


def fork_fork_server(
    modules: Sequence[str], environment: Mapping[str, str], alone: Sequence[str] = ()
) -> None:
    """The same as a fork of this process, which imports the modules for both; those that the server
    needs alone it imports by itself. Started from nothing where this process is not as the server
    must be."""
    if threading.active_count() > 1 or not has_begun_with(environment):
        start_fork_server((*modules, *alone), environment)
        return
    for name in modules:
        import_module(name)
    with _forking(environment):
        start_fork_server((*modules, *alone), environment)


@contextmanager
def _forking(environment: Mapping[str, str]) -> Iterator[None]:
    """For the block, multiprocessing's new interpreters are forks of this process that do what the
    interpreter was to do."""
    resource_tracker.ensure_running()  # it is started by the same function, and from nothing
    start = util.spawnv_passfds

    def fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # Any: as there
        child = os.fork()
        if child == 0:
            util.spawnv_passfds = start  # what is started from there is started as ever
            _play(args[-1], environment, passfds)
        return child

    util.spawnv_passfds = fork
    try:
        yield
    finally:
        util.spawnv_passfds = start


def _play(program: str, environment: Mapping[str, str], passed: Sequence[int]) -> None:
    """What a new interpreter does with a program; the process ends with it."""
    status = 1
    try:
        _close_other_ends(passed)
        os.environ.update(environment)
        name_process("fork-server")
        _keep_offline()
        exec(program, {})  # multiprocessing's own: import its server's main, and call it
    except SystemExit:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _close_other_ends(passed: Sequence[int]) -> None:
    """Close what an exec would close and the server must not hold: the flow's end of the pipe by
    which it learns that the flow is gone."""
    here = Path("/proc/self/fd")
    kept = {os.readlink(here / str(number)) for number in passed}
    for number in map(int, os.listdir(here)):
        with suppress(FileNotFoundError):  # the listing itself
            if number not in passed and os.readlink(here / str(number)) in kept:
                os.close(number)


def _keep_offline() -> None:
    """What HF_HUB_OFFLINE says was read when the hub's client was imported, by a flow that may ask
    the hub."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """These variables for the block: a process takes the environment of who starts it."""
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
