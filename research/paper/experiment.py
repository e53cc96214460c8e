"""An experiment of a paper: the runs that are played for it, and the figures that follow from them.

    FigurePart: cases ─▶ each is played ─▶ its steps as figures ─▶ figures, named as in `published`

A case is a value: equal cases of two parts are played once, in any process. Leaves out comparison
with the published figures and the files that are written (`compared`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean
from typing import Protocol

from tasks.cluster.parent import end_with

QUICK = 1  # periods of a run that is to end soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything is played."""

    periods: int = 2  # of short and long rounds; the eta of a policy says how many steps that is
    seed: int = 0  # of lengths, verdicts and traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A step as it was played, or a whole run where a case has no steps."""

    kind: str  # of its round, as its policy names it
    figures: Mapping[str, float]  # by name, with the unit


class Case(Protocol):
    """A run; hashable, and small enough to be sent to another process."""

    @property
    def label(self) -> str:
        """A short description for the line that reports progress."""
        ...

    @property
    def weight(self) -> float:
        """Expected duration relative to other cases: the heaviest are begun first."""
        ...

    def play(self) -> tuple[Observed, ...]:
        """Play the run; equal cases give equal steps."""
        ...


Steps = Sequence[Observed]
Played = Mapping[str, Steps]  # by the name that a part gives its case
PlayedCases = dict[Case, tuple[Observed, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePart:
    """A line or column of a figure or table."""

    name: str  # what the names of its figures begin with
    cases: Mapping[str, Case]
    figures: Callable[[Played], dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or table of a paper."""

    name: str
    about: str  # in a line
    unit: str  # of its figures
    parts: tuple[FigurePart, ...]

    def only(self, chosen: Sequence[str]) -> Experiment:
        """The experiment with the parts that are chosen by name, by a beginning of it, or by one
        of their figures; with all parts when nothing is chosen."""
        parts = tuple(part for part in self.parts if not chosen or is_chosen(part.name, chosen))
        return Experiment(name=self.name, about=self.about, unit=self.unit, parts=parts)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases of all parts, each once."""
        return tuple(dict.fromkeys(case for part in self.parts for case in part.cases.values()))

    def figures(self, played: Mapping[Case, tuple[Observed, ...]]) -> dict[str, float]:
        """The figures of all parts. Raises KeyError for a case that was not played."""
        found: dict[str, float] = {}
        for part in self.parts:
            found |= part.figures({name: played[case] for name, case in part.cases.items()})
        return found


def is_chosen(name: str, chosen: Iterable[str]) -> bool:
    """True if a chosen name equals this name, lies above it, or is one of its figures."""
    return any(f"{name}/".startswith(f"{one}/") or one.startswith(f"{name}/") for one in chosen)


def values(steps: Steps, figure: str, kind: str = "") -> list[float]:
    """A figure of every step, or of the steps of one kind."""
    return [step.figures[figure] for step in steps if not kind or step.kind == kind]


def mean(steps: Steps, figure: str, kind: str = "") -> float:
    """The mean of a figure over the steps. Raises StatisticsError without any."""
    return fmean(values(steps, figure, kind))


def total(steps: Steps, figure: str, kind: str = "") -> float:
    """The sum of a figure over the steps."""
    return sum(values(steps, figure, kind))


def play_cases(
    cases: Iterable[Case], num_processes: int, report: Callable[[str], None]
) -> PlayedCases:
    """Play each case once, in this many processes. The first exception of a case ends all."""
    ordered = sorted(dict.fromkeys(cases), key=lambda case: case.weight, reverse=True)
    played: PlayedCases = {}
    for case, steps, seconds in _results(ordered, num_processes):
        played[case] = steps
        report(f"{len(played)}/{len(ordered)} {case.label}: {seconds:.1f} s")
    return played


def _results(
    cases: list[Case], num_processes: int
) -> Iterator[tuple[Case, tuple[Observed, ...], float]]:
    """Steps and seconds of each case, in the order in which they end. A single process is this
    one."""
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
    """The steps of a case, and the seconds that playing them took."""
    began_s = time.monotonic()
    return case.play(), time.monotonic() - began_s
