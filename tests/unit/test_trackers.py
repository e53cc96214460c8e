"""Trackers beside MLflow: each gets what MLflow gets, by its real library where that is installed,
and none stops a run."""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.reports import tracker_threads as threads_module
from artifacts.reports.figures import HEADLINES, with_headlines
from artifacts.reports.tracker_threads import Trackers
from artifacts.reports.trackers import (
    PACKAGES,
    TRACKERS,
    TrackedRun,
    TrackerName,
    TrackerStatus,
)
from artifacts.reports.tracking import RunTracker
from flows.config.keep import KeepConfig
from flows.config.misfits import misfits_of_places
from flows.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]


class Recorder:
    """A tracker that keeps what it gets, in memory."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def begin(self, run: TrackedRun, params: Mapping[str, Any]) -> None:  # Any: JSON values
        self.calls.append((run.run_id, dict(params)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append((step, dict(metrics)))

    def finish(self, status: TrackerStatus) -> None:
        self.calls.append(status)


class Refusing(Recorder):
    """One whose server refuses every step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise PermissionError("no such key\nand a long traceback")


class Hanging(Recorder):
    """One whose server never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.is_over.wait(60)


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun(run_id="tiny-1", project="rollflow", folder=tmp_path / "tiny-1" / "trackers")


def test_a_tracker_gets_the_metrics_of_mlflow_with_headlines_first(
    run: TrackedRun, tmp_path: Path
) -> None:
    recorder = Recorder()
    tracker = RunTracker(
        f"sqlite:///{tmp_path}/mlflow.db", Trackers({"recorder": recorder}, run.folder)
    )
    tracker.start(experiment="tests", run_name="tiny-1", params={"seed": 3}, tags={})
    tracker.log_metrics(0, {"heldout/reward_mean": 0.25, "heldout/infra": 0.0})
    tracker.log_step(1, {"train/entropy_nats": 1.5, "reward/mean": 0.5})
    assert tracker.end("FINISHED")
    begun, heldout, step, ended = recorder.calls
    assert (begun, ended) == (("tiny-1", {"seed": 3}), "FINISHED")
    assert heldout == (
        0,
        {"reward/heldout": 0.25, "heldout/reward_mean": 0.25, "heldout/infra": 0.0},
    )
    assert step == (1, {"reward/mean": 0.5, "entropy": 1.5, "train/entropy_nats": 1.5})
    assert tracker.untold() == []


def test_headlines_are_few_and_first() -> None:
    metrics = dict.fromkeys(HEADLINES.values(), 1.0)
    assert list(with_headlines({"a/a": 0.0, **metrics}))[: len(HEADLINES)] == list(HEADLINES)
    assert len(HEADLINES) == 15


def test_a_resumed_run_sends_nothing_twice_and_a_new_tracker_everything(run: TrackedRun) -> None:
    first, second, added = Recorder(), Recorder(), Recorder()
    for trackers, steps in (
        ({"a": first}, (1, 2)),
        ({"a": second, "b": added}, (1, 2, 3)),
    ):
        told = Trackers(trackers, run.folder)
        told.begin("tiny-1", "rollflow", {})
        for step in steps:
            told.log(step, {"reward/mean": float(step)})
        assert told.finish("KILLED") == ()
    sent = [[call[0] for call in one.calls[1:-1]] for one in (first, second, added)]  # type: ignore[index]
    assert sent == [[1, 2], [3], [1, 2, 3]]


def test_a_tracker_that_refuses_costs_one_warning(
    run: TrackedRun, caplog: pytest.LogCaptureFixture
) -> None:
    told = Trackers({"refusing": Refusing(), "recorder": (recorder := Recorder())}, run.folder)
    told.begin("tiny-1", "rollflow", {})
    for step in (1, 2, 3):
        told.log(step, {"reward/mean": 1.0})
    reason = "PermissionError: no such key"
    assert told.finish("FINISHED") == (f"refusing lacks part of this run, which goes on: {reason}",)
    assert caplog.text.count("refusing lacks part") == 1
    assert len(recorder.calls) == 5
    assert told.finish("FINISHED")  # told again, and waits for nothing


def test_what_a_tracker_lacks_is_told_once_as_soon_as_it_is_known(
    run: TrackedRun, tmp_path: Path
) -> None:
    told = Trackers({"refusing": Refusing(), "recorder": (recorder := Recorder())}, run.folder)
    tracker = RunTracker(f"sqlite:///{tmp_path}/mlflow.db", told)
    tracker.start(experiment="tests", run_name="tiny-1", params={}, tags={})
    tracker.log_step(1, {"reward/mean": 0.5})
    until_s = time.monotonic() + 30
    while not (found := tracker.untold()) and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    assert [each.partition(" lacks")[0] for each in found] == ["refusing"]
    tracker.log_step(2, {"reward/mean": 0.5})
    assert tracker.end("FINISHED")
    assert tracker.untold() == []
    assert [call[0] for call in recorder.calls[1:-1]] == [1, 2]  # type: ignore[index]


def test_a_key_of_wandb_without_a_network_is_one_sentence_and_its_cure(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("wandb")
    import wandb

    wandb.teardown()  # it reads its environment once
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    told = Trackers.named(("wandb", "tensorboard"), run.folder)
    told.begin("tiny-1", "rollflow", {})
    told.log(1, {"reward/mean": 1.0})
    (warning,) = told.finish("FINISHED")
    wandb.teardown()
    assert warning.startswith("wandb lacks part of this run, which goes on: ConnectionError: ")
    assert warning.endswith("; 'export WANDB_MODE=offline' writes files for `wandb sync`")
    assert (run.folder / "tensorboard.sent").read_text().splitlines() == ["1 reward/mean"]


def test_a_tracker_that_hangs_holds_nothing_up(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "ENDS_WITHIN_S", 0.2)
    hanging, recorder = Hanging(), Recorder()
    told = Trackers({"hanging": hanging, "recorder": recorder}, run.folder)
    told.begin("tiny-1", "rollflow", {})
    began_s = time.monotonic()
    told.log(1, {"reward/mean": 1.0})
    warnings = told.finish("FINISHED")
    assert time.monotonic() - began_s < 10
    assert [warning.split()[0] for warning in warnings] == ["hanging"]
    assert recorder.calls[-1] == "FINISHED"
    hanging.is_over.set()


def test_a_missing_library_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("artifacts.reports.trackers.find_spec", lambda name: None)
    config = RunConfig.model_validate({"preset": "tiny", "keep": {"trackers": "wandb,trackio"}})
    (told,) = misfits_of_places(config)
    assert "pip install 'wandb==0.31.0' 'trackio==0.43.0', or leave them out" in told


def test_trackers_are_named_in_the_extras_and_read_from_one_word() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {name: extras[name] for name in TRACKERS} == {
        name: [package] for name, package in PACKAGES.items()
    }
    assert KeepConfig.model_validate({"trackers": "wandb, trackio"}).trackers == (
        "wandb",
        "trackio",
    )
    with pytest.raises(ValidationError, match="'wandb', 'tensorboard', 'swanlab' or 'trackio'"):
        KeepConfig.model_validate({"trackers": ["wandbb"]})


def played(name: TrackerName, run: TrackedRun, apart_s: float = 0.0) -> None:
    """Two attempts at a run, of two steps and of three, by the real library."""
    for steps in ((1, 2), (1, 2, 3)):
        told = Trackers.named((name,), run.folder)
        told.begin("tiny-1", "rollflow", {"seed": 3, "learner": {"loss": {"kind": "ppo_clip"}}})
        for step in steps:
            told.log(step, {"reward/mean": step / 4, "grad_norm": 1.0})
        assert told.finish("FINISHED") == ()
        time.sleep(apart_s)


def installed(name: TrackerName) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install '{PACKAGES[name]}' runs this test")


HISTORY = [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_tensorboard_has_every_step_once(run: TrackedRun) -> None:
    installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    played("tensorboard", run)
    read = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("reward/mean")] == HISTORY
    (text,) = {event.tensor_proto.string_val[0] for event in read.Tensors("configuration")}
    assert b'"kind": "ppo_clip"' in text


def logged_records(data: bytes) -> Iterator[bytes]:
    """The records of LevelDB's log format, after W&B's head of seven bytes: blocks of 32 KiB, in
    which a record has a checksum, its length and 1 (whole), 2 (first), 3 or 4 (last) before it."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:  # a block's rest that holds no head
            at += (1 << 15) - at % (1 << 15)
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def test_wandb_has_every_step_once(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    from wandb.proto import wandb_internal_pb2

    played("wandb", run, apart_s=1.1)  # it names folders by the second
    found, ids = [], set()
    for path in sorted(run.folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in logged_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                found.append((row["step"], row["reward/mean"]))
    assert (found, ids) == (HISTORY, {"tiny-1"})


def test_trackio_has_every_step_once(
    run: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("trackio")
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path)
    played("trackio", run)
    (database,) = tmp_path.glob("rollflow*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step")
        found = [(name, step, json.loads(metrics)["reward/mean"]) for name, step, metrics in rows]
    assert found == [("tiny-1", *point) for point in HISTORY]


def test_swanlab_has_every_step_once(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("swanlab")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    played("swanlab", run)
    files = sorted((run.folder / "swanlab").glob("run-*/*.swanlab"))
    written = b"".join(path.read_bytes() for path in files)
    assert written.count(b"reward/mean") >= len(HISTORY)
