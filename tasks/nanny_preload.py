"""For nannies that no run starts: their workers are forked from a process that has imported what a
run needs, so that the next run, which begins in new processes, does not wait for imports.

    dask worker tcp://HOST:8786 --name engine-0 --preload-nanny tasks.nanny_preload ...

Leaves out workers of GPUs: a process that has not seen which one is its own must import for itself.
"""

from __future__ import annotations

import dask
from distributed import Nanny

from tasks.cluster.fork_server import METHOD, start_fork_server

IMPORTS = ("tasks.cluster.dask_cluster", "tasks.worker_imports")


def dask_setup(nanny: Nanny) -> None:
    """Dask's hook: the nanny starts."""
    dask.config.set({METHOD: "forkserver"})
    start_fork_server(IMPORTS, {name: str(value) for name, value in nanny.pre_spawn_env.items()})
