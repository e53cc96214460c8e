"""Hands the metrics of a run on to its trackers, each on a thread of its own: one that fails or
hangs costs a warning with its name, never the run.

    log ─┬▶ queue ─▶ thread ─▶ tracker, and a line in NAME.sent
         └▶ queue ─▶ thread ─▶ tracker, ...

A resumed run logs all its steps again. What `NAME.sent` has is not sent twice, and a tracker that
was added by the resume gets the steps before it, too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from artifacts.reports.outbox import first_line
from artifacts.reports.trackers import (
    TRACKERS,
    TrackedRun,
    Tracker,
    TrackerName,
    TrackerStatus,
)

logger = logging.getLogger(__name__)

HANGS_AFTER_S = 60.0  # a call that takes longer ends the tracker's part in the run
ENDS_WITHIN_S = 30.0  # the run's end waits so long for all trackers


class TrackerThread:
    """One tracker with its queue of calls."""

    def __init__(self, name: str, tracker: Tracker, folder: Path) -> None:
        """folder: holds the record of the metrics that were sent."""
        self._name, self._tracker = name, tracker
        self._record = folder / f"{name}.sent"
        self._queue: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._busy_since_s = math.inf  # monotonic time at which the call under way began
        self.warning = ""  # the first failure; empty if all went well
        self._is_given_up = False
        self._thread = Thread(target=self._work, name=f"tracker-{name}", daemon=True)

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        self._put("begin", lambda: self._tracker.begin(run, params))
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue metrics of a step, unless those of this step and first name were sent before."""
        line = f"{step} {min(metrics)}"
        self._put(line, lambda: self._tracker.log(step, metrics))

    def finish(self, status: TrackerStatus) -> None:
        """Queue the end of the run."""
        self._put("finish", lambda: self._tracker.finish(status))
        self._queue.put(None)

    def wait(self, within_s: float) -> None:
        """Wait until the run has ended in the tracker, `within_s` seconds at most."""
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._give_up(f"it has not ended within {within_s:.0f} s")

    def _put(self, subject: str, call: Callable[[], None]) -> None:
        busy_s = time.monotonic() - self._busy_since_s
        if busy_s > HANGS_AFTER_S:
            self._give_up(f"a call has not returned for {busy_s:.0f} s")
        if not self._is_given_up:
            self._queue.put((subject, call))

    def _work(self) -> None:
        sent = set(self._record.read_text().splitlines()) if self._record.exists() else set()
        for subject, call in iter(self._queue.get, None):
            if self._is_given_up or subject in sent:
                continue
            self._busy_since_s = time.monotonic()
            try:
                call()
                if subject not in ("begin", "finish"):
                    sent.add(subject)
                    with self._record.open("a") as record:
                        print(subject, file=record)
            except Exception as error:  # whatever a library raises
                self._warn(f"{type(error).__name__}: {first_line(error)}")
                self._is_given_up |= subject == "begin"
            self._busy_since_s = math.inf

    def _give_up(self, reason: str) -> None:
        self._is_given_up = True
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if not self.warning:
            self.warning = f"{self._name} lacks part of this run, which goes on: {reason}"
            logger.warning("tracker=%s %s", self._name, self.warning)


class Trackers:
    """The trackers of a run. No call raises because of one, and only `finish` waits."""

    def __init__(self, trackers: Mapping[str, Tracker], folder: Path = Path()) -> None:
        """folder: for their files, and the record of what each has."""
        self._folder = folder
        self._threads = [TrackerThread(name, each, folder) for name, each in trackers.items()]
        self._is_begun = False

    @classmethod
    def named(cls, names: Sequence[TrackerName], folder: Path) -> Trackers:
        """The trackers of these names, not begun."""
        return cls({name: TRACKERS[name]() for name in names}, folder)

    def begin(self, run_id: str, project: str, params: Mapping[str, Any]) -> None:  # Any: JSON
        """Begin the run in every tracker. params: its effective configuration."""
        self._is_begun = True
        if self._threads:
            self._folder.mkdir(parents=True, exist_ok=True)
        run = TrackedRun(run_id=run_id, project=project, folder=self._folder)
        for thread in self._threads:
            thread.begin(run, params)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step; several calls of a step must differ in the first of the names."""
        for thread in self._threads:
            thread.log(step, metrics)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each tracker that lacks something of the run by now."""
        return tuple(thread.warning for thread in self._threads if thread.warning)

    def finish(self, status: TrackerStatus) -> tuple[str, ...]:
        """End the run in every tracker that was begun; returns their warnings."""
        until_s = time.monotonic() + ENDS_WITHIN_S
        if self._is_begun:
            for thread in self._threads:
                thread.finish(status)
            for thread in self._threads:
                thread.wait(max(0.0, until_s - time.monotonic()))
        self._is_begun = False
        return self.warnings
