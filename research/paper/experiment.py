"""What an experiment of a paper is: runs that are played, and the figures that follow from them.

    Part: cases ─▶ play each ─▶ its steps as figures ─▶ figures by name, as `published` has them

A case is a value: equal cases of two parts are played once, and in whatever process. Pure. Leaves
out who plays them (`playing`) and what is kept (`kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything is played."""

    periods: int = 2  # of short and long rounds; a period has the steps that its eta asks for
    seed: int = 0  # of lengths, verdicts and traces


QUICK = 1  # periods of a run that is to end soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A step as it was played, or a whole run where a case has no steps."""

    kind: str  # of its round, as its policy names it
    figures: Figures  # by name, with the unit


Steps = Sequence[Observed]
Played = Mapping[str, Steps]  # by the name that a part gives its case


class Case(Protocol):
    """A run; hashable, and small enough to be sent to another process."""

    @property
    def label(self) -> str:
        """In a few words, for who waits for it."""
        ...

    @property
    def weight(self) -> float:
        """How long it takes beside others: the heaviest are begun first."""
        ...

    def play(self) -> tuple[Observed, ...]:
        """The same for equal cases."""
        ...


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
        """With the parts that are chosen by name, by a beginning of it, or by one of a figure."""
        parts = tuple(part for part in self.parts if not chosen or is_chosen(part.name, chosen))
        return Experiment(name=self.name, about=self.about, unit=self.unit, parts=parts)

    @property
    def cases(self) -> tuple[Case, ...]:
        """Each once."""
        return tuple(dict.fromkeys(case for part in self.parts for case in part.cases.values()))

    def figures(self, played: Mapping[Case, tuple[Observed, ...]]) -> dict[str, float]:
        """Of all its parts. Raises KeyError for a case that was not played."""
        found: dict[str, float] = {}
        for part in self.parts:
            found |= part.figures({name: played[case] for name, case in part.cases.items()})
        return found


def is_chosen(name: str, chosen: Iterable[str]) -> bool:
    """Whether one of these is the name, lies above it, or is one of its figures."""
    return any(f"{name}/".startswith(f"{one}/") or one.startswith(f"{name}/") for one in chosen)


def values(steps: Steps, figure: str, kind: str = "") -> list[float]:
    """A figure of every step, or of those of a kind."""
    return [step.figures[figure] for step in steps if not kind or step.kind == kind]


def mean(steps: Steps, figure: str, kind: str = "") -> float:
    """The mean of a figure over the steps. Raises StatisticsError without any."""
    return fmean(values(steps, figure, kind))


def total(steps: Steps, figure: str, kind: str = "") -> float:
    """The sum of a figure over the steps."""
    return sum(values(steps, figure, kind))
