"""The seeding windows of a run: plans the window of each step, and learns from each step's times.

    elastic workers that are there ─▶ plan ─▶ window of the step ─▶ round ─▶ enter ─▶ next window
    seeding.json at the artifact root ◀─ windows by (model, class of elastic workers, kind of round,
    number)                                                                         ─▶ later runs

Long rounds have other responses than short ones, so that each kind has its own windows. Elastic
workers are of one class if they have the same price class and equally many devices of each kind."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from artifacts.commit import StepCommit
from artifacts.store import Store
from flows.run import OpenRun
from flows.run_facts import config_label
from tasks.elastic.worker_events import AdmittedWorker
from tasks.metrics.report import StepReport, seeding_figures, seeding_times
from tasks.scheduling.seeding import PlannedWindow, Seeding, SeedingTimes, after_step

logger = logging.getLogger(__name__)

FILE = "seeding.json"  # at the artifact root, beside the runs


class SeedingWindows:
    """Plans and learns the seeding windows of one run; does nothing when seeding is off."""

    def __init__(self, run: OpenRun) -> None:
        self._config = run.config.seeding
        named = config_label(run.config.model.model_dump(mode="json"))
        self._model = f"{named} ({Path(run.context.model_path).name})"
        self._root = Store.open(run.context.artifact_root)
        # by kind of round; without memory_s, which depends on the class of elastic workers as well
        self._seedings = {commit.kind: Seeding(**commit.seeding) for commit in run.commits}
        self._memory_s: dict[str, Mapping[int, float]] = {}  # read when first needed

    def plan(self, elastic_workers: Collection[AdmittedWorker], kind: str) -> PlannedWindow | None:
        """Plan the window of a step with these workers; None if off. kind: of the step's round."""
        if not self._config.enabled:
            return None
        present = present_of(elastic_workers)
        window_s = self._known(present, kind).window_for(len(present), self._config)
        names = frozenset(worker.name for worker in present)
        return PlannedWindow(window_s=window_s, workers=names)

    def enter(
        self, record: StepCommit, report: StepReport, elastic_workers: Collection[AdmittedWorker]
    ) -> StepCommit:
        """Learn from a step's times; returns its commit with the window's metrics and state."""
        window = report.rollout.window
        if not self._config.enabled or window is None:
            return record
        present, kind = present_of(elastic_workers), report.plan.round.kind
        times = seeding_times(report, frozenset(worker.name for worker in present))
        if times is not None:
            self._learn(present, kind, times)
        seeding = self._seedings.get(kind, Seeding())
        figures = seeding_figures(window, times, seeding)
        kept = {"window_s": seeding.window_s, "worth_holding": seeding.worth_holding}
        return replace(record, metrics={**record.metrics, **figures}, seeding=kept)

    def _learn(self, present: Collection[AdmittedWorker], kind: str, times: SeedingTimes) -> None:
        """Update the window, and store the windows by number of elastic workers for later runs."""
        before = self._known(present, kind)
        after = after_step(before, times, self._config)
        self._seedings[kind] = replace(after, memory_s={})
        if after.memory_s != before.memory_s and self._config.remembers:
            alike = _alike(present, kind)
            self._memory_s[alike] = after.memory_s
            write_windows(self._root, self._model, alike, after.memory_s)
            logger.info("elastic_workers=%s seeding_windows_s=%s", alike, dict(after.memory_s))

    def _known(self, present: Collection[AdmittedWorker], kind: str) -> Seeding:
        """Seeding state of this kind of rounds, with the windows remembered for such workers."""
        alike = _alike(present, kind)
        if present and alike not in self._memory_s and self._config.remembers:
            self._memory_s[alike] = read_windows(self._root, self._model, alike)
        seeding = self._seedings.get(kind, Seeding())
        return replace(seeding, memory_s=self._memory_s.get(alike, {}))


def present_of(elastic_workers: Collection[AdmittedWorker]) -> list[AdmittedWorker]:
    """Select the elastic workers in state "present": they have held weights and are not leaving."""
    return [worker for worker in elastic_workers if worker.state == "present"]


def class_of(elastic_workers: Collection[AdmittedWorker]) -> str:
    """Price class and number of devices of each kind, several joined by " + "; empty for none."""
    classes = set[str]()
    for elastic_worker in elastic_workers:
        kinds = Counter(device.partition(":")[0] for device in elastic_worker.devices)
        counts = (f"{count} {kind}" for kind, count in kinds.items())
        classes.add(" ".join([elastic_worker.price_class, *counts]))
    return " + ".join(sorted(classes))


def _alike(present: Collection[AdmittedWorker], kind: str) -> str:
    return f"{class_of(present)}, {kind} rounds"


def read_windows(store: Store, model: str, worker_class: str) -> dict[int, float]:
    """Seeding windows in seconds by number of workers; empty if no run has found one."""
    return _read_all(store).get(f"{model} on {worker_class}", {})


def write_windows(
    store: Store, model: str, worker_class: str, windows_s: Mapping[int, float]
) -> None:
    """Add windows to those in the file. If two runs write at the same time, the last one wins; a
    later run finds a lost window again."""
    windows = _read_all(store)
    windows.setdefault(f"{model} on {worker_class}", {}).update(windows_s)
    store.keep(FILE, json.dumps(windows, indent=1, sort_keys=True).encode())


def _parsed(data: bytes) -> dict[str, dict[int, float]]:
    return {
        key: {int(count): float(seconds) for count, seconds in windows.items()}
        for key, windows in json.loads(data).items()
    }


def _read_all(store: Store) -> dict[str, dict[int, float]]:
    try:
        return store.parsed(FILE, _parsed, "it is written anew")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("seeding windows are found again: %s", error)
        return {}
