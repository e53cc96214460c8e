"""Commits, manifest and checkpoints: complete or absent, whatever is killed when."""

from __future__ import annotations

import errno
import json
import math
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts import layout
from artifacts.checkpoint import MARKER, Checkpoints
from artifacts.commit import (
    RunManifest,
    StepCommit,
    check_place,
    commit_step,
    digest_of_manifest,
    git_sha,
    package_versions,
    read_commits,
    read_manifest,
    write_manifest,
)
from artifacts.records import WeightsRef
from artifacts.store import Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path))


def a_commit(step: int) -> StepCommit:
    return StepCommit(
        step=step,
        kind="short",
        weights=WeightsRef(version=step, path=f"/dev/shm/run/{step:05d}.safetensors", digest="ab"),
        queue={"long": ["0/3", "0/9"]},
        seeds={"data": step},
        counters={"prompts_drawn": 8 * step},
        metrics={"reward/mean": 1 / 3},
        timings={"rollout": 0.1},
        checkpoint=None,
        planner={"short": {"size": 2, "preemptions": 7, "quiet_rounds": 0}},
        timeouts={"1f/0": [2.5, 3, 0]},
    )


def test_commits_come_back_equal_and_in_order(store: Store) -> None:
    for step in (2, 1, 3):
        commit_step(store, a_commit(step))
    assert read_commits(store) == [a_commit(1), a_commit(2), a_commit(3)]


def test_a_checkpoint_of_which_the_learners_wrote_nothing_here_is_none(store: Store) -> None:
    checkpoints = Checkpoints(store, 1)
    with (
        checkpoints.aside(Path(store.url)) as aside,
        pytest.raises(ValueError, match=r"must have a file of each rank, .* has none; have keep"),
    ):
        checkpoints.commit(3, aside)
    assert not store.exists(layout.checkpoint_dir(3))


def test_no_commits_is_an_empty_run(store: Store) -> None:
    assert read_commits(store) == []


def test_a_commit_of_an_earlier_version_still_loads(store: Store) -> None:
    commit_step(store, replace(a_commit(1), planner={}, timeouts={}))
    raw = json.loads(store.checked(layout.step_file(layout.STEPS, 1)))
    del raw["planner"], raw["timeouts"]
    store.write(
        layout.step_file(layout.STEPS, 1), json.dumps(raw | {"mlflow_logged": True}).encode()
    )
    assert read_commits(store) == [replace(a_commit(1), planner={}, timeouts={})]


def test_a_step_is_committed_once(store: Store) -> None:
    commit_step(store, a_commit(1))
    commit_step(store, a_commit(1))
    with pytest.raises(ValueError, match="step 1 must be committed once"):
        commit_step(store, replace(a_commit(1), counters={"prompts_drawn": 9}))
    assert read_commits(store) == [a_commit(1)]


def test_a_gap_is_an_error_that_names_the_step(store: Store) -> None:
    for step in (1, 3):
        commit_step(store, a_commit(step))
    with pytest.raises(ValueError, match="contiguous, missing step 2"):
        read_commits(store)


def test_a_commit_killed_before_its_rename_never_happened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        commit_step(store, a_commit(1))
    assert read_commits(store) == []


def test_a_diverged_metric_keeps_the_file_valid_json(store: Store) -> None:
    commit_step(store, replace(a_commit(1), metrics={"train/loss": math.nan}))
    json.loads(store.read(layout.step_file(layout.STEPS, 1)), parse_constant=pytest.fail)
    assert math.isnan(read_commits(store)[0].metrics["train/loss"])


def test_commits_of_another_version_are_refused(store: Store) -> None:
    commit_step(store, replace(a_commit(1), schema_version=9))
    with pytest.raises(ValueError, match="must have schema version 1, got 9"):
        read_commits(store)


@pytest.mark.parametrize("change", [{"new": 1}, {"weights": {"path": "x"}}, {"metrics": None}])
def test_a_commit_with_other_fields_is_named(store: Store, change: dict[str, object]) -> None:
    commit_step(store, a_commit(1))
    told = json.loads(store.checked("steps/00001.json"))
    store.write("steps/00001.json", json.dumps(told | change).encode())
    with pytest.raises(ValueError, match=r"steps/00001.json must be the commit of a step"):
        read_commits(store)


def test_the_manifest_comes_back_equal(store: Store) -> None:
    manifest = RunManifest(
        run_id="r1",
        created="2026-01-01T00:00:00Z",
        config={"steps": 3, "policy": {"kind": "sync"}},
        packages=package_versions(["pyarrow", "no-such-package"]),
        git_sha=None,
        mlflow_run_id="abc",
        prefect_flow_run_ids=("f1", "f2"),
        links={"prefect": "http://localhost:4200"},
    )
    assert set(manifest.packages) == {"pyarrow"}
    write_manifest(store, manifest)
    assert read_manifest(store) == manifest


def test_a_missing_manifest_says_where_it_looked(store: Store) -> None:
    with pytest.raises(ValueError, match=r"must hold a run, but has no manifest.json"):
        read_manifest(store)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "must hold a JSON object"),
        (b"[]", "must have schema version 1, got None"),
        (b"5", "must hold a JSON object"),
        (b'{"schema_version": 1}', "must be the manifest of a run"),
        (b'{"schema_version": 1, "prefect_flow_run_ids": null}', "must be the manifest of a run"),
    ],
)
def test_a_damaged_manifest_is_named(store: Store, data: bytes, said: str) -> None:
    store.write(layout.MANIFEST, data)
    with pytest.raises(ValueError, match=rf"manifest.json {said}"):
        read_manifest(store)


def test_outside_git_there_is_no_sha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_sha(tmp_path) is None


@pytest.fixture(params=["local", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return (
        Store.open(str(tmp_path))
        if request.param == "local"
        else Store.open(f"memory://{uuid.uuid4().hex}")
    )


def save(checkpoints: Checkpoints, step: int, content: str, scratch: Path) -> None:
    with checkpoints.aside(scratch) as aside:
        (aside / "rank0").mkdir()
        (aside / "rank0/state").write_text(content)
        checkpoints.commit(step, aside)


def saved(checkpoints: Checkpoints, step: int, scratch: Path) -> str:
    with checkpoints.fetched(step, scratch) as directory:
        return (directory / "rank0/state").read_text()


def test_checkpoints_are_complete_or_absent_and_the_last_ones_stay(
    any_store: Store, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(any_store, keep=2)
    assert checkpoints.steps() == []
    for step in (1, 2, 3):
        save(checkpoints, step, f"state {step}", tmp_path)
        checkpoints.prune(step)
    assert checkpoints.steps() == [2, 3]
    assert saved(checkpoints, 3, tmp_path) == "state 3"


def test_an_uncommitted_checkpoint_neither_counts_nor_costs_the_committed_one(
    any_store: Store, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(any_store, keep=1)
    save(checkpoints, 1, "committed", tmp_path)
    save(checkpoints, 2, "interrupted", tmp_path)
    checkpoints.prune(committed_step=1)
    assert checkpoints.steps() == [1, 2]
    save(checkpoints, 2, "replayed", tmp_path)
    checkpoints.prune(committed_step=2)
    assert checkpoints.steps() == [2]
    assert saved(checkpoints, 2, tmp_path) == "replayed"


def test_a_full_disk_under_a_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"disk full: .*/checkpoints/00004 needs 1 bytes"):
        save(Checkpoints(Store.open(str(tmp_path)), keep=1), 4, "x", tmp_path)


def test_a_checkpoint_without_its_marker_is_none(any_store: Store, tmp_path: Path) -> None:
    checkpoints = Checkpoints(any_store, keep=1)
    save(checkpoints, 4, "x", tmp_path)
    any_store.delete(f"{layout.checkpoint_dir(4)}/{MARKER}")
    assert checkpoints.steps() == []
    with pytest.raises(ValueError, match=r"step 4 must have a checkpoint, .* has steps \[\]"):
        saved(checkpoints, 4, tmp_path)


def test_saving_and_fetching_leave_nothing_beside_the_checkpoints(
    any_store: Store, tmp_path: Path
) -> None:
    checkpoints, scratch = Checkpoints(any_store, keep=1), tmp_path / "scratch"
    save(checkpoints, 1, "x", scratch)
    assert saved(checkpoints, 1, scratch) == "x"
    with checkpoints.aside(scratch) as aside:
        (aside / "half").write_text("a shard of a save that was given up")
    assert list(scratch.glob("*")) == []
    assert any_store.sweep(layout.CHECKPOINTS) == 0
    assert checkpoints.steps() == [1]


def begun(root: str) -> tuple[Store, str]:
    """The folder of a run that has begun, and the digest of its manifest."""
    store = Store.open(root)
    manifest = RunManifest(
        run_id="r1", created="", config={}, packages={}, git_sha=None, mlflow_run_id=None
    )
    write_manifest(store, manifest)
    commit_step(store, a_commit(1))
    return store, digest_of_manifest(store)


def without_manifest(store: Store) -> None:
    store.delete(layout.MANIFEST)


def without_commit(store: Store) -> None:
    store.delete(layout.step_file(layout.STEPS, 1))


def with_another_manifest(store: Store) -> None:
    """As a second attempt at the run writes it."""
    write_manifest(store, replace(read_manifest(store), prefect_flow_run_ids=("other",)))


def with_another_commit(store: Store) -> None:
    without_commit(store)
    commit_step(store, replace(a_commit(1), weights=replace(a_commit(1).weights, digest="cd")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_manifest, "there is no .*manifest.json any more; put the folder back"),
        (without_commit, "there is no .*steps/00001.json any more; put the folder back"),
        (with_another_manifest, "manifest.json is of another attempt or run; put"),
        (with_another_commit, "steps/00001.json is of another run; put"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_a_commit_looks_for_its_run_and_its_predecessor(
    tmp_path: Path, is_local: bool, change: Callable[[Store], None], said: str
) -> None:
    store, manifest = begun(str(tmp_path) if is_local else f"memory://{tmp_path.name}")
    check_place(store, manifest, None)
    check_place(store, manifest, a_commit(1))
    change(store)
    with pytest.raises(StoreError, match=said):
        check_place(store, manifest, a_commit(1))
