"""A kill at a drawn moment of a run, what it met, and what came of it beside the same run without
a kill."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts import layout
from artifacts.handover import PREFIX
from artifacts.status import read_status
from artifacts.store import Store
from research.kills.descendants import SHARED_MEMORY, is_alive
from research.kills.injected_run import InjectedRun
from research.kills.injections import Injection, Victim
from research.kills.injector import Injector, Told
from research.kills.kill_kinds import Kind, Victims

STEPS = (1, 2, 3)  # one of which a kill waits for
COMES_WITHIN_S = 30.0  # a later stage of a step that has begun
LOOK_S = 0.005
FINISHED = "finished"  # a status


@dataclass(frozen=True, slots=True, kw_only=True)
class KillMoment:
    """When somebody is killed."""

    step: int
    stage: str  # of the step; from there on
    delay_s: float

    @classmethod
    def drawn(cls, draws: random.Random, stages: Mapping[str, float]) -> KillMoment:
        """Some moment of these stages, each with its longest delay."""
        step, stage = draws.choice(STEPS), draws.choice(list(stages))
        return cls(step=step, stage=stage, delay_s=draws.uniform(0.0, stages[stage]))

    def is_near(self, run: InjectedRun) -> bool:
        """Whether the step has begun."""
        return (run.folder / layout.step_file(layout.PLANS, self.step)).exists()

    def wait(self, run: InjectedRun) -> None:
        """Return when it has come, or does not come: stages of a small run are short."""
        ends = time.monotonic() + COMES_WITHIN_S
        while not self.is_reached(run) and time.monotonic() < ends:
            time.sleep(LOOK_S)
        time.sleep(self.delay_s)

    def is_reached(self, run: InjectedRun) -> bool:
        """Whether the run has come so far, the delay aside."""
        commit = run.folder / layout.step_file(layout.STEPS, self.step)
        weights = Path(SHARED_MEMORY, f"{PREFIX}{run.name}", f"{self.step:05d}.safetensors")
        begun = {
            "rollout": run.folder / layout.step_file(layout.PLANS, self.step),
            "training": run.folder / layout.step_file(layout.ROUNDS, self.step),
            "publication": weights,
        }.get(self.stage, commit)
        return begun.exists() or commit.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a kill found."""

    at_s: float  # Unix seconds
    where: str  # step and stage
    num_closed: int  # steps whose rounds were closed
    committed: Mapping[int, str]  # digests of the weights by step


class TimedKill:
    """A victim that is there from a moment on, and is struck once only."""

    def __init__(self, victim: Victim, moment: KillMoment) -> None:
        self.met: list[Met] = []
        self._victim, self._moment = victim, moment
        self._struck: list[Any] = []  # Any: see `Victim`

    def of(self, run: InjectedRun) -> Victim:
        """The victim for an injector."""

        def find(_: InjectedRun) -> list[Any]:  # Any: see `Victim`
            targets = [each for each in self._victim.find(run) if each not in self._struck]
            if not targets or not self._moment.is_near(run):
                return []
            self._moment.wait(run)
            return [each for each in targets if not _is_gone(each)]

        def strike(target: Any) -> None:  # Any: see `Victim`
            self.met.append(_met(run))
            self._struck.append(target)
            self._victim.strike(target)

        return Victim(weight=1, find=find, strike=strike)


def _is_gone(target: object) -> bool:
    return isinstance(target, psutil.Process) and not is_alive(target)


def _met(run: InjectedRun) -> Met:
    return Met(
        at_s=time.time(),
        where=f"step {run.committed + 1}, {run.stage}",
        num_closed=len(list((run.folder / layout.ROUNDS).glob("[0-9]*.json"))),
        committed=digests(run.folder),
    )


def digests(folder: Path) -> dict[int, str]:
    """Digest of the weights after every committed step of a run."""
    commits = sorted((folder / layout.STEPS).glob("[0-9]*.json"))
    return {int(path.stem): json.loads(path.read_text())["weights"]["digest"] for path in commits}


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOutcome:
    """What came of a kill."""

    kind: str
    moment: str  # that was met
    exits: tuple[int, ...]  # codes of the command, attempt by attempt
    seconds: float  # from the kill to the next commit; NaN without one
    num_compared: int  # steps, with those of the run without a kill
    different: tuple[int, ...]  # of these, the steps with other weights
    left_over: tuple[str, ...]  # processes, dead and alive, and shared memory
    wrong: tuple[str, ...]  # whatever else must not be, a sentence each

    @property
    def is_well(self) -> bool:
        """Whether nothing at all is to be said."""
        return not (self.different or self.left_over or self.wrong)


def play(
    run: InjectedRun, table: Victims, kind: Kind, draws: random.Random
) -> tuple[Told, list[Met]]:
    """A run in which the kind's victim is killed, and what each kill met."""
    name = kind.injections[-1]
    timed = TimedKill(table[name], KillMoment.drawn(draws, kind.stages))
    injections = [Injection(victims=(each,), wait_s=0.0) for each in kind.injections]
    injector = Injector({**table, name: timed.of(run)}, injections, 0, float("inf"))
    return injector.play(run, kind.job.num_steps), timed.met


def judged(
    kind: Kind, run: InjectedRun, told: Told, met: Sequence[Met], whole: Mapping[int, str]
) -> KillOutcome:
    """What came of the kills, beside the digests of the run without them."""
    got = digests(run.folder)
    num_compared = len(whole) if kind.job.is_exact else met[0].num_closed if met else 0
    compared = range(1, num_compared + 1)
    exits = tuple(attempt.returncode for attempt in run.attempts)
    return KillOutcome(
        kind=kind.name,
        moment=" and ".join(each.where for each in met) or "none",
        exits=exits,
        seconds=_seconds(run, met),
        num_compared=num_compared,
        different=tuple(step for step in compared if got.get(step) != whole.get(step)),
        left_over=(*sorted(told.leftovers), *sorted(told.zombies)),
        wrong=tuple(_wrong(kind, run, told, met, got)),
    )


def _seconds(run: InjectedRun, met: Sequence[Met]) -> float:
    commits = [path.stat().st_mtime for path in (run.folder / layout.STEPS).glob("[0-9]*.json")]
    killed_s = met[-1].at_s if met else math.inf
    return min((at_s for at_s in commits if at_s > killed_s), default=math.nan) - killed_s


def _wrong(
    kind: Kind, run: InjectedRun, told: Told, met: Sequence[Met], got: Mapping[int, str]
) -> Iterator[str]:
    yield from (*told.hangs, *told.findings.wrong)
    missing = len(kind.injections) - told.kills.total()
    if missing:
        yield f"{missing} of {len(kind.injections)} injections found nobody in time"
    exits = tuple(attempt.returncode for attempt in run.attempts)
    if exits != kind.exits:
        yield f"the exit codes must be {kind.exits}, they are {exits}"
    for words in told.stops:
        if not kind.says or kind.says not in words:
            yield f"the run said: {words}"
    for each in met:
        lost = [step for step, digest in each.committed.items() if got.get(step) != digest]
        if lost:
            yield f"steps {lost} were committed before the kill and are not what they were"
    status = read_status(Store.open(str(run.folder)))
    if status is None or status.state != FINISHED:
        yield f"the status must be {FINISHED}, it is {status and status.state}"
