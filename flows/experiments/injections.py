"""What is killed, and when: a table of victims, and draws from it.

An experiment has a table of its own; a further kind of victim is a further line of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # it has no stubs

from flows.experiments.injected_run import InjectedRun

AT_ONCE = 0.2  # share of the injections that kill two
LONGEST_WAIT_S = 4.0  # between two injections, while there is somebody to kill


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A kind of process that may be killed."""

    weight: int  # how often, beside the others of the table
    find: Callable[[InjectedRun], list[psutil.Process]]  # those that there are now
    ends_run: bool = False  # whether somebody must go on with the run afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What is to be killed at once."""

    victims: tuple[str, ...]  # by the names of the table; those that end the run last
    wait_s: float  # how long to wait once there is one of each


def drawn(seed: int, count: int, table: Mapping[str, Victim]) -> list[Injection]:
    """Injections of so many victims together."""
    draws = random.Random(seed)
    names, weights = list(table), [victim.weight for victim in table.values()]
    injections = []
    while count:
        num_victims = min(count, 2 if draws.random() < AT_ONCE else 1)
        victims = draws.choices(names, weights, k=num_victims)
        victims.sort(key=lambda name: table[name].ends_run)
        wait_s = draws.uniform(0.0, LONGEST_WAIT_S)
        injections.append(Injection(victims=tuple(victims), wait_s=wait_s))
        count -= num_victims
    return injections


def found(
    injection: Injection, table: Mapping[str, Victim], run: InjectedRun, draws: random.Random
) -> list[psutil.Process] | None:
    """A process for each victim, no two alike; None while there are too few."""
    chosen: list[psutil.Process] = []
    for name in injection.victims:
        there = [process for process in table[name].find(run) if process not in chosen]
        if not there:
            return None
        chosen.append(draws.choice(sorted(there, key=lambda process: process.pid)))
    return chosen
