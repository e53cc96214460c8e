"""Workers are forked from a process that has imported what each of them needs.

    flow ──starts──▶ fork server: imports, once ──fork──▶ control, engine-0, learner-0, ...

A worker's imports take seconds of a core each time one is started, by a run or after a death; a
fork takes none. What an import reads of the environment (numbers of threads, visible GPUs) is the
server's, so workers that need different ones are started from nothing, as Dask does by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Literal

from distributed.utils import get_mp_context

from tasks.cluster.devices import WorkerSpec

METHOD = "distributed.worker.multiprocessing-method"  # Dask's setting
# its workers agree on the hashes of strings; the number is Dask's
HASH_SEED = {"PYTHONHASHSEED": "6640"}


def start_method(specs: Sequence[WorkerSpec]) -> Literal["forkserver", "spawn"]:
    """How Dask is to start these workers."""
    environments = {tuple(sorted(spec.environment.items())) for spec in specs}
    return "forkserver" if len(environments) == 1 else "spawn"


def start_fork_server(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have the server import these modules in this environment; returns at once. One that runs
    already is left as it is. The setting METHOD must say forkserver."""
    get_mp_context().set_forkserver_preload(list(modules))
    with _environment(HASH_SEED | dict(environment)):
        forkserver.ensure_running()


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
