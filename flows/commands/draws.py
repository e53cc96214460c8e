"""Plays configurations in virtual time for `rollflow recommend`: draw by draw, in as many processes
as there are cores, and says how far it is.

    (configuration, draw) ─▶ whole periods of steps ─▶ Drawn
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flows.commands.situation import Situation
from flows.config.run_config import RunConfig
from flows.played_config import played_run
from tasks.cluster.parent import end_with
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play

FEWEST_STEPS = 3  # of a draw: a single step is one draw of its longest response
MOST_STEPS = 200  # of a draw: many levels with a small eta have periods without end
WARM_UP = 2  # steps in which those that overlap fill their pipeline
Play = tuple[RunConfig, int]  # a configuration, and which draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The planned steps of a draw."""

    step_s: float  # mean
    rollout_s: float  # of all of them
    total_s: float  # of all of them
    tokens_per_s: float


@contextmanager
def players(place: Situation) -> Iterator[ProcessPoolExecutor]:
    """Processes that play draws of a situation: forked, because that has functions that cannot be
    sent."""
    pool = ProcessPoolExecutor(
        os.cpu_count() or 1,
        get_context("fork"),
        initializer=_begin,
        initargs=(place, os.getpid()),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def draw_all(pool: ProcessPoolExecutor, what: str, plays: Sequence[Play]) -> list[Drawn]:
    """What came of each, in their order. `what`: they are, for who waits. ValueError for what
    cannot be played."""
    futures = [pool.submit(_draw, each) for each in plays]
    _show(what, futures)
    return [future.result() for future in futures]


def _show(what: str, futures: Sequence[Future[Drawn]]) -> None:
    """A line that counts those that are done, until all are; nothing where nobody looks."""
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        for _ in progress.track(as_completed(futures), total=len(futures), description=what):
            pass


_places: list[Situation] = []  # of this process, if it plays


def _begin(place: Situation, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends at once, and says nothing
    end_with(parent)
    _places.append(place)


def _draw(each: Play) -> Drawn:
    """Without steps that fill a pipeline, and those that drain what is left."""
    run = _run(*each, _places[-1])
    is_off_policy = run.policy.algebra(run.batch).is_off_policy
    played = play(run).planned.after(is_off_policy * WARM_UP)
    return Drawn(
        step_s=played.mean("step_s"),
        rollout_s=played.total("rollout_s"),
        total_s=played.total("step_s"),
        tokens_per_s=played.tokens_per_s,
    )


def _run(config: RunConfig, draw: int, place: Situation) -> SimulatedRun:
    """Whole periods of it, as far as they are not too long."""
    algebra = config.scheduling.algebra(config.batch)
    periods = math.ceil(FEWEST_STEPS / algebra.period_steps)
    num_steps = min(periods * algebra.period_steps, MOST_STEPS)
    return played_run(
        config,
        place.machine,
        place.work(draw),
        num_steps + algebra.is_off_policy * WARM_UP,
        devices_per_rank=place.group_size,
        seed=draw + 1,
    )
