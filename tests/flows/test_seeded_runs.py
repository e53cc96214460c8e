"""A run whose own devices would leave the rest of a round to elastic workers, and to which none
comes, is the plain one. With one: `test_elastic_worker_runs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.cluster.ports import free_port
from tests.flows.conftest import SIMULATED, Launcher
from tests.flows.test_elastic_worker_runs import SEEDING, commits, figure, trained_responses

pytestmark = pytest.mark.flow


def told(run: Path, name: str) -> list[float | None]:
    """A figure of every step that may not have it."""
    return [commit["metrics"].get(name) for commit in commits(run)]


def test_without_an_elastic_worker_the_run_is_the_plain_one(
    launcher: Launcher, tmp_path: Path
) -> None:
    runs: list[Path] = []
    for name, seeds in (("alone", "true"), ("plain", "false")):
        done = launcher.run(
            tmp_path,
            *(*SIMULATED, f'run_name="{name}"', "scheduling.kind=sync"),
            *(f"seeding.enabled={seeds}", f"cluster.scheduler_port={free_port()}"),
            preset=SEEDING,
        )
        assert done.code == 0, done.err
        runs.append(tmp_path / name)
    alone, plain = runs
    assert len(commits(alone)) == len(commits(plain)) == 2
    for step in (1, 2):
        assert trained_responses(alone, step) == trained_responses(plain, step)
    for name in ("rollout/freed_learners", "rollout/tokens", "train/streamed_groups"):
        assert figure(alone, name) == figure(plain, name)
    assert figure(alone, "seeding/closed") == [0.0, 0.0]
    assert told(alone, "seeding/window_s") == told(plain, "seeding/closed") == [None, None]
    assert not (tmp_path / "seeding.json").exists(), "there was nothing to learn"
