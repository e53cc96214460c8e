"""What is struck, how and when: a table of victims, and draws from it.

An experiment has a table of its own; a further kind of victim, or another blow, is a further line
of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no stubs

from research.kills.injected_run import InjectedRun

AT_ONCE = 0.2  # share of the injections that strike two
LONGEST_WAIT_S = 4.0  # between two injections, while there is somebody to strike


def kill(process: psutil.Process) -> None:
    """As kill -9 does."""
    process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A kind of process, or of whatever else `find` gives, that may be struck."""

    weight: int  # how often, beside the others of the table
    find: Callable[[InjectedRun], Sequence[Any]]  # those that there are now; Any: see `strike`
    strike: Callable[[Any], None] = kill  # Any: what `find` gives
    ends_run: bool = False  # whether somebody must go on with the run afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What is to be struck at once."""

    victims: tuple[str, ...]  # by the names of the table; those that end the run last
    wait_s: float  # how long to wait once there is one of each


def engines(run: InjectedRun) -> list[psutil.Process]:
    """Workers that hold an engine of the run's own, with the pool of its hosts."""
    return run.workers("engine")


def flow(run: InjectedRun) -> list[psutil.Process]:
    """The process of the flow."""
    return [psutil.Process(run.flow.pid)]


def drawn(
    seed: int,
    count: int,
    table: Mapping[str, Victim],
    longest_wait_s: float = LONGEST_WAIT_S,
) -> list[Injection]:
    """Injections of so many victims together."""
    draws = random.Random(seed)
    names, weights = list(table), [victim.weight for victim in table.values()]
    injections = []
    while count:
        num_victims = min(count, 2 if draws.random() < AT_ONCE else 1)
        victims = draws.choices(names, weights, k=num_victims)
        victims.sort(key=lambda name: table[name].ends_run)
        wait_s = draws.uniform(0.0, longest_wait_s)
        injections.append(Injection(victims=tuple(victims), wait_s=wait_s))
        count -= num_victims
    return injections


def found(
    injection: Injection, table: Mapping[str, Victim], run: InjectedRun, draws: random.Random
) -> list[Any] | None:  # Any: see `Victim`
    """Somebody for each victim, no two alike; None while there are too few."""
    chosen: list[Any] = []
    for name in injection.victims:
        there = [target for target in table[name].find(run) if target not in chosen]
        if not there:
            return None
        chosen.append(draws.choice(sorted(there, key=str)))
    return chosen
