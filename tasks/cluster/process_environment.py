"""Environment variables that every process of a run must start with, as they are read then and
never again. Imports nothing heavy: commands import this module before all others."""

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
# kernels of packed rows, which hardly ever have the same length twice, take 13 MB each; the
# library's default keeps 1024 of them
KEEP_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
# workers agree on the hashes of strings; the number is Dask's
HASH_SEED = {"PYTHONHASHSEED": "6640"}
NO_BARS = {"TQDM_DISABLE": "1"}
# no import looks into the working directory before Python's library and installed packages
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
SOURCES = Path(__file__).parents[2]


def threads(number: int) -> dict[str, str]:
    """Environment variables that give OpenMP, MKL and OpenBLAS this number of threads each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(number))


def first_environment(num_threads: int = 1) -> dict[str, str]:
    """Environment variables that a process reads only when it starts."""
    return KEEP_MEMORY | KEEP_KERNELS | HASH_SEED | NO_BARS | threads(num_threads)


def has_begun_with(environment: Mapping[str, str]) -> bool:
    """True if this process started with the values of `environment` for all variables that are read
    only at the start; False without /proc/self/environ."""
    with suppress(OSError):
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
        begun = dict(line.decode(errors="replace").partition("=")[::2] for line in lines)
        return all(begun.get(name) == environment.get(name) for name in first_environment())
    return False


def python_path() -> dict[str, str]:
    """Environment variables by which a child process imports from these sources first, then from
    PYTHONPATH, and not from the working directory, where a user may have a `random.py`."""
    entries = (str(SOURCES), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, entries)))} | SAFE_PATH


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; a forked process has its parent's."""
    with suppress(OSError):  # a system without /proc
        Path("/proc/self/comm").write_text(name)
