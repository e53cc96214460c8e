"""Runs whose files are damaged or taken away: what can be made again is, bit by bit; else the run
ends with one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from artifacts.store import Store
from tests.flows.conftest import ENDS_WITHIN_S, SIMULATED, Launcher, wait_for
from tests.flows.test_recovery import digests

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def whole(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    finished = launcher.run(run.parent, *SIMULATED, f'run_name="{run.name}"')
    assert finished.code == 0, finished.err
    return run


def killed_copy(whole: Path, name: str) -> Path:
    """The run as a kill in its second step leaves it, which was trained and not committed."""
    run = whole.with_name(name)
    shutil.copytree(whole, run)
    for told in ("steps/00002.json", "evaluation/rounds/00002.json", "status.json"):
        (run / told).unlink()
    return run


def flip(path: Path, share: float) -> None:
    """One bit, at this share of the file."""
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 4
    path.write_bytes(data)


def test_a_damaged_optimizer_state_is_passed_over_and_its_steps_are_replayed(
    launcher: Launcher, whole: Path
) -> None:
    """At nine tenths of the file lies a moment: of three tensors alike two are."""
    run = killed_copy(whole, "moment")
    (shard, *_) = sorted((run / "checkpoints/00001").glob("shard-*.safetensors"))
    flip(shard, 0.9)
    finished = launcher.run(run.parent, resume=run.name)
    assert finished.code == 0, finished.err
    assert (
        f"checkpoints/00001/{shard.name} must be as it was saved"
        in (run / "log/flow.log").read_text()
    )
    assert digests(run) == digests(whole)


def test_a_damaged_round_ends_a_resume_whose_cure_makes_it_again(
    launcher: Launcher, whole: Path
) -> None:
    run = killed_copy(whole, "round")
    flip(run / "rounds/00002.json", 0.5)
    refused = launcher.run(run.parent, resume=run.name)
    assert refused.code != 0
    assert "rounds/00002.json" in refused.err
    assert "restore it from a copy; if its step is not committed, delete" in refused.err
    for folder in ("rounds", "splits", "moments", "groups", "responses"):
        for left in (run / folder).glob("*00002*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    resumed = launcher.run(run.parent, resume=run.name)
    assert resumed.code == 0, resumed.err
    assert digests(run) == digests(whole)


def as_an_earlier_version_wrote_it(run: Path) -> None:
    """Without a digest anywhere."""
    store = Store.open(str(run))
    apart = ("report", "model", "evaluation")
    for part, others in ((store, apart), (store.child("evaluation"), ())):
        folder = part.local_path("")
        for path in [*folder.rglob("*.json"), *folder.rglob("*.parquet")]:
            name = path.relative_to(folder).as_posix()
            if not name.startswith(others):
                part.write(name, part.checked(name))
    manifest = json.loads(store.read("manifest.json"))
    del manifest["has_digests"]
    store.write("manifest.json", json.dumps(manifest).encode())


def test_a_run_of_an_earlier_version_goes_on_without_digests(
    launcher: Launcher, whole: Path
) -> None:
    run = killed_copy(whole, "earlier")
    as_an_earlier_version_wrote_it(run)
    finished = launcher.run(run.parent, resume=run.name)
    assert finished.code == 0, finished.err
    assert "earlier was begun by a version that kept no digests" in finished.out
    assert digests(run) == digests(whole)
    assert not json.loads((run / "manifest.json").read_text())["has_digests"]


def test_a_run_whose_folder_is_gone_trains_no_further_step(
    launcher: Launcher, tmp_path: Path
) -> None:
    run, away = tmp_path / "runs" / "moved", tmp_path / "away"
    process = launcher.start(run.parent, *SIMULATED, "num_steps=40", 'run_name="moved"')
    wait_for(run / "steps/00001.json", process)
    run.rename(away)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode != 0
    assert f"{run} has no manifest.json any more" in err
    assert len(list((away / "steps").glob("*.json"))) < 10
    assert not list(run.glob("steps/*"))
