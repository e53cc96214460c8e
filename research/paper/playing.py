"""Plays cases, each once, in as many processes as there are cores to spare."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from research.paper.experiment import Case, Observed
from tasks.cluster.parent import end_with

Tell = Callable[[str], None]
PlayedCases = dict[Case, tuple[Observed, ...]]


def play_cases(cases: Iterable[Case], num_processes: int, tell: Tell) -> PlayedCases:
    """What came of each case. An exception of a case ends it all."""
    ordered = sorted(dict.fromkeys(cases), key=lambda case: case.weight, reverse=True)
    played: PlayedCases = {}
    for case, steps, seconds in _results(ordered, num_processes):
        played[case] = steps
        tell(f"{len(played)}/{len(ordered)} {case.label}: {seconds:.1f} s")
    return played


def _results(
    cases: list[Case], num_processes: int
) -> Iterator[tuple[Case, tuple[Observed, ...], float]]:
    """In the order in which they end. One process is this one."""
    if min(num_processes, len(cases)) <= 1:
        yield from ((case, *_timed(case)) for case in cases)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, end_with, (os.getpid(),)) as pool:
        futures: dict[Future[tuple[tuple[Observed, ...], float]], Case] = {
            pool.submit(_timed, case): case for case in cases
        }
        try:
            for future in as_completed(futures):
                yield (futures[future], *future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _timed(case: Case) -> tuple[tuple[Observed, ...], float]:
    """What came of it, and the seconds that it took."""
    began_s = time.monotonic()
    return case.play(), time.monotonic() - began_s
