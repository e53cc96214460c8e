"""Kills parts of runs until enough is killed, and has every run come to its end.

begin ─▶ ┌ look ─▶ somebody to kill, and time? ─▶ SIGKILL ┐ ─▶ over ─▶ records, processes
         └── ended by a kill, or by itself ─▶ begin again ◀┘
"""

from __future__ import annotations

import math
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts.commit import read_manifest
from artifacts.store import Store
from research.kills.injected_records import Findings, examine
from research.kills.injected_run import InjectedRun
from research.kills.injection_watch import InjectionWatch
from research.kills.injections import Injection, Victim, found

POLL_S = 0.3
PATIENCE_S = 300.0  # without a record for so long, a run hangs
MAX_STOPS = 3  # in a row that a run may end by itself without a step in between
POSTPONED_AFTER_S = 60.0  # an injection whose victims are not there goes behind the others
LAST_STEPS = 2  # of a run, in which nothing is killed: what was lost must be seen to come back


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of one run."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)  # by victim and stage
    hangs: list[str] = field(default_factory=list)  # where it stood still
    stops: list[str] = field(default_factory=list)  # what it said when it ended by itself
    findings: Findings = field(default_factory=Findings)  # of its records
    zombies: set[str] = field(default_factory=set)  # processes that nobody buried
    leftovers: set[str] = field(default_factory=set)  # processes and memory that outlived it
    unhealed: list[str] = field(default_factory=list)  # places of environments that stayed empty


class Hung(Exception):
    """A run stands still; the words say where."""


class Injector:
    """Works on one run after the other, from one list of injections."""

    def __init__(
        self,
        table: Mapping[str, Victim],
        injections: Sequence[Injection],
        seed: int,
        within_s: float,
    ) -> None:
        """within_s: so many seconds after somebody could be killed first, nothing more is."""
        self._table = table
        self._left = deque(injections)
        self._num = sum(len(each.victims) for each in injections)
        self._draws = random.Random(f"choice/{seed}")
        self._due_s: float | None = None
        self._asked_s = 0.0  # since when the next one is, by the monotonic clock
        self._within_s = within_s
        self._ends_s = math.inf

    @property
    def is_done(self) -> bool:
        """Whether all was killed that was to be, or the time is over."""
        return not self._left or time.monotonic() > self._ends_s

    def play(self, run: InjectedRun, num_steps: int) -> Told:
        """One run from its beginning to its end, and what there is to say of it."""
        watch, kills, stops, hangs = InjectionWatch(run), Counter[tuple[str, str]](), [], []
        unhealed: list[str] = []
        try:
            stops = self._play(run, watch, kills, num_steps)
            unhealed = _unhealed(run, watch)
        except Hung as hung:
            hangs.append(str(hung))
        finally:
            run.stop()
            watch.end()
        return Told(
            kills=kills,
            hangs=hangs,
            stops=stops,
            findings=examine(Store.open(str(run.folder))),
            zombies=watch.zombies,
            leftovers=watch.leftovers,
            unhealed=unhealed,
        )

    def _play(
        self,
        run: InjectedRun,
        watch: InjectionWatch,
        kills: Counter[tuple[str, str]],
        num_steps: int,
    ) -> list[str]:
        """What the run said whenever it ended by itself. Hung where it stands still."""
        stops: list[tuple[int, str]] = []
        run.begin()
        self._ask()
        while True:
            time.sleep(POLL_S)
            watch.look()
            if run.silent_s() > PATIENCE_S:
                raise Hung(run.where())
            code = run.flow.poll()
            if code is None:
                if not self.is_done and run.committed < num_steps - LAST_STEPS:
                    self._try(run, watch, kills)
            elif code == 0:
                return [words for _, words in stops]
            else:
                watch.orphan()
                if code != -signal.SIGKILL:
                    stops.append((run.committed, run.last_words()))
                if [step for step, _ in stops[-MAX_STOPS:]] == [run.committed] * MAX_STOPS:
                    raise Hung(f"{run.name} ends again and again: {stops[-1][1]}")
                run.begin()

    def _try(
        self, run: InjectedRun, watch: InjectionWatch, kills: Counter[tuple[str, str]]
    ) -> None:
        """Strike what is next, if it is there and its time has come."""
        injection = self._left[0]
        victims = found(injection, self._table, run, self._draws)
        if victims is None:
            if time.monotonic() - self._asked_s > POSTPONED_AFTER_S:
                self._left.rotate(-1)
                self._ask()
            return
        self._ends_s = min(self._ends_s, time.monotonic() + self._within_s)
        if self._due_s is None:
            self._due_s = time.monotonic() + injection.wait_s
        if time.monotonic() < self._due_s:
            return
        watch.before_kill()
        stage = run.stage
        for name, target in zip(injection.victims, victims, strict=True):
            with suppress(psutil.NoSuchProcess):  # it has ended by itself
                self._table[name].strike(target)
        kills.update((name, stage) for name in injection.victims)
        self._left.popleft()
        self._ask()
        done = self._num - sum(len(each.victims) for each in self._left)
        what = " and ".join(injection.victims)
        where = f"{run.name}, step {run.committed + 1}, {stage}"
        print(f"{done}/{self._num} {what} ({where})", file=sys.stderr, flush=True)

    def _ask(self) -> None:
        """From now on for the next injection."""
        self._due_s = None
        self._asked_s = time.monotonic()


def _unhealed(run: InjectedRun, watch: InjectionWatch) -> list[str]:
    config = read_manifest(Store.open(str(run.folder))).config
    missing = watch.unhealed(int(config["episodes"]["hosts"]["num_hosts"]))
    return [f"{run.name}: {missing} places of environments stayed empty"] if missing else []
