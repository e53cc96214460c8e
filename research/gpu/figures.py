"""The lines by which a part tells the command that started it a figure, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

# begin the lines of a part that are for the command; libraries print lines of their own
MARK, SKIPPED = "FIGURE ", "NOT MEASURED "


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value, and the bound that it should keep, if there is one."""

    name: str  # "publication of 1.5b by file"
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool | None:
        """True if the value keeps its bound; None for a figure without one."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def bound(self) -> str:
        """The bound as it is printed; empty without one."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    def print(self) -> None:
        """Print the figure for the command that started this process."""
        print(MARK + json.dumps(asdict(self)), flush=True)


def not_measured(name: str, why: str) -> None:
    """Tell the command that started this process why a figure is missing."""
    print(f"{SKIPPED}{name}: {why}", flush=True)


def skipped_in(lines: Iterable[str]) -> Iterator[str]:
    """The names of missing figures among the lines that a process has printed, each with why."""
    for line in lines:
        if line.startswith(SKIPPED):
            yield line.removeprefix(SKIPPED)


def figures_in(lines: Iterable[str]) -> Iterator[Figure]:
    """The figures among the lines that a process has printed."""
    for line in lines:
        if line.startswith(MARK):
            yield Figure(**json.loads(line.removeprefix(MARK)))
