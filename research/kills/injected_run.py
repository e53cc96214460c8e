"""A run in processes of its own, as a user starts it and goes on with it, seen from outside: how
far it has come, what it consists of, whether it stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts import layout
from artifacts.layout import LOGS, MANIFEST, STATUS
from flows.output import FLOW_LOG
from research.kills.descendants import descendants, worker_name
from tasks.cluster.process_environment import python_path

BEFORE = "before the first step"  # a stage
TRAIN = ("flows.commands.train", "--parent", str(os.getpid()))
LAST_WORDS = 3  # lines of the flow's log that an account of a hang holds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """Which run it is."""

    root: Path  # artifact root
    name: str  # its folder there
    preset: str  # its configuration
    settings: tuple[str, ...]  # FIELD=VALUE, what differs from the preset
    command: tuple[str, ...] = TRAIN  # module that is called, and words before the others


class InjectedRun:
    """A run and its attempts."""

    def __init__(
        self,
        order: RunOrder,
        environment: Mapping[str, str],
        others: Callable[[], Collection[psutil.Process]],
    ) -> None:
        """environment: of clients of the Prefect server. others: the children of this process
        that are none of the run's."""
        self.name = order.name
        self.folder = order.root / order.name
        self.attempts: list[subprocess.Popen[bytes]] = []
        self._order = order
        self._environment = os.environ | python_path() | dict(environment)
        self._others = others
        self._processes: list[psutil.Process] = []
        self._records: dict[str, int] = {}  # the files seen last, with their times
        self._written_s = time.monotonic()

    def begin(self) -> None:
        """Start it, or go on with it where it has got as far as a manifest."""
        with (self._order.root / f"{self.name}.txt").open("ab") as output:
            attempt = subprocess.Popen(
                self.command(), env=self._environment, stdout=output, stderr=output
            )
        self.attempts.append(attempt)
        self._written_s = time.monotonic()

    def command(self) -> list[str]:
        """What a user would call now."""
        words = ["--preset", self._order.preset, "--set", f"keep.artifact_root={self._order.root}"]
        if (self.folder / MANIFEST).exists():
            words += ["--resume", self.name]
        else:
            for setting in (f'run_name="{self.name}"', *self._order.settings):
                words += ["--set", setting]
        return [sys.executable, "-m", *self._order.command, *words]

    @property
    def flow(self) -> subprocess.Popen[bytes]:
        """The process of the command, of this attempt: the flow's own, but for `demo`."""
        return self.attempts[-1]

    def look(self) -> list[psutil.Process]:
        """All processes of this attempt, and what is left of earlier ones."""
        self._processes = descendants(self._others())
        return self._processes

    @property
    def processes(self) -> Sequence[psutil.Process]:
        """Those that were there at the last look."""
        return self._processes

    def workers(self, role: str) -> list[psutil.Process]:
        """The worker processes of a role that there are now."""
        named = {process: worker_name(process) for process in self.processes}
        return [
            process
            for process, name in named.items()
            if name.partition("-")[0] == role and named.get(_parent(process), "") != name
        ]

    @property
    def committed(self) -> int:
        """Steps that are committed."""
        return len(list((self.folder / layout.STEPS).glob("[0-9]*.json")))

    @property
    def stage(self) -> str:
        """What it is at, as its records say."""
        step = self.committed + 1
        if not (self.folder / layout.step_file(layout.PLANS, 1)).exists():
            return BEFORE
        if (self.folder / layout.step_file(layout.ROUNDS, step)).exists():
            return "training"
        is_begun = (self.folder / layout.step_file(layout.PLANS, step)).exists()
        return "rollout" if is_begun else "between steps"

    def silent_s(self) -> float:
        """Seconds since it wrote a record; its logs and signs of life are none. Before the first
        step, when it may be making its model, what it tells its user counts as well."""
        records = self._written()
        if records != self._records:
            self._records, self._written_s = records, time.monotonic()
        return time.monotonic() - self._written_s

    def where(self) -> str:
        """What there is to say of a run that stands still."""
        latest = max(self._records, key=lambda name: self._records[name], default="nothing")
        alive = sorted({worker_name(process) or "nameless" for process in self.processes})
        log = self.folder / LOGS / FLOW_LOG
        said = log.read_text(errors="replace").splitlines() if log.exists() else []
        return (
            f"{self.name}, step {self.committed + 1}, {self.stage}: nothing written for"
            f" {time.monotonic() - self._written_s:.0f} s, {latest} was the last; alive:"
            f" {', '.join(alive)}; the flow said last: {' | '.join(said[-LAST_WORDS:])}"
        )

    def last_words(self) -> str:
        """What the flow told its user last, but for where its log is."""
        told = (self._order.root / f"{self.name}.txt").read_text(errors="replace").split("\n")
        words = (line for line in reversed(told) if line.strip() and not line.startswith("log: "))
        return next(words, "nothing")

    def stop(self) -> None:
        """End the flow, unless it has ended; all else ends with it."""
        if self.attempts and self.flow.poll() is None:
            self.flow.kill()
            self.flow.wait()

    def _written(self) -> dict[str, int]:
        told = self._order.root / f"{self.name}.txt"
        is_told = self.stage == BEFORE and told.exists()
        found = {told.name: told.stat().st_mtime_ns} if is_told else {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if path.parent.name == LOGS or name == STATUS:
                    continue
                try:
                    found[str(path.relative_to(self.folder))] = path.stat().st_mtime_ns
                except OSError:
                    continue  # moved or deleted meanwhile
        return found


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None
