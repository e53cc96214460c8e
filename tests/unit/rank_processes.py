"""Processes of ranks that meet, forked from one that has imported what they need.

    test ──▶ origin: imports, once ──fork──▶ rank 0, rank 1, ...

A process that imports torch, FSDP and transformers by itself takes ten seconds of a core.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache

DEADLINE_S = 120.0  # of a process, from its start
Arguments = Sequence[tuple[object, ...]]  # of each process


def run_processes(target: Callable[..., None], arguments: Arguments) -> None:
    """The same function in one process per argument list, side by side; all must end well."""
    assert exit_codes(target, arguments) == [0] * len(arguments)


def exit_codes(target: Callable[..., None], arguments: Arguments) -> list[int | None]:
    """The same, and how each process ended: -9 where it was still there at the deadline."""
    return _origin().submit(_fork, target, arguments).result()


@cache
def _origin() -> ProcessPoolExecutor:
    """One process, which imports the module of a function that it is to run, and runs nothing."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _fork(target: Callable[..., None], arguments: Arguments) -> list[int | None]:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]
