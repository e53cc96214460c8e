"""What a process of a run must have in its environment when it begins: the allocator of memory,
libraries with threads and Python's hashes read theirs then and never again.

Leaves out what is read later, and which worker has how many threads (tasks.cluster.devices).
Imports nothing heavy: a command looks here before it imports anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# freed memory stays with the process: Dask's own trim threshold of 64 KiB costs a training step
# 1.45 times its length
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(10**12),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": str(2**26),
}
# kernels of packed rows, which hardly ever have the same length twice: 13 MB a row, kept 1024
KEEP_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
# workers agree on the hashes of strings; the number is Dask's
HASH_SEED = {"PYTHONHASHSEED": "6640"}
NO_BARS = {"TQDM_DISABLE": "1"}
# nobody imports from the working directory before Python's own library and what is installed
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
SOURCES = Path(__file__).parents[2]


def threads(number: int) -> dict[str, str]:
    """So many threads for each library that has some."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(number))


def first_environment(num_threads: int = 1) -> dict[str, str]:
    """All that a process reads at its beginning alone."""
    return KEEP_MEMORY | KEEP_KERNELS | HASH_SEED | NO_BARS | threads(num_threads)


def has_begun_with(environment: Mapping[str, str]) -> bool:
    """Whether this process read at its beginning what it would read in such an environment; False
    where the system keeps no record of it."""
    with suppress(OSError):
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
        begun = dict(line.decode(errors="replace").partition("=")[::2] for line in lines)
        return all(begun.get(name) == environment.get(name) for name in first_environment())
    return False


def python_path() -> dict[str, str]:
    """Variables by which a child imports from these sources first, then from what PYTHONPATH names,
    and not from the working directory, where a user may have a `tasks.py` or a `random.py`.

    What users name by import path is found there all the same (tasks.isolation.import_path).
    """
    entries = (str(SOURCES), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, entries)))} | SAFE_PATH


def name_process(name: str) -> None:
    """What `ps` and `top` call this process; its command line may be that of who forked it."""
    with suppress(OSError):  # a system without /proc
        Path("/proc/self/comm").write_text(name)
