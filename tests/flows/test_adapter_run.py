"""Whole runs that train an adapter, on the real engine: what is published and checked, and what is
left behind. Runs that are killed: `test_recovery`."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.adapter_files import A, B
from artifacts.weights import digest, read_weights
from tests.flows.asynchronous_records import check, commits
from tests.flows.conftest import DRAWN, ENDS_WITHIN_S, Launcher, moment, wait_for

pytestmark = [pytest.mark.flow, pytest.mark.engine, pytest.mark.timeout(900)]

ADAPTER = "learner.lora.rank=4"
TOLERANCE_NATS = 0.1


def check_published(run: Path) -> None:
    """Every step's version is new, and engines computed with it as the learner does."""
    done = commits(run)
    assert len({commit["weights"]["digest"] for commit in done}) == len(done)
    for commit in done:
        assert 0 < commit["metrics"]["publish/probe_difference_nats"] < TOLERANCE_NATS


@pytest.mark.parametrize("publish", ["adapter", "merged"])
def test_a_run_trains_an_adapter(launcher: Launcher, tmp_path: Path, publish: str) -> None:
    run = tmp_path / publish
    settings = (DRAWN, ADAPTER, f"learner.lora.publish={publish}", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *settings)
    last = moment(run, "00002.safetensors")
    wait_for(last, process)
    published = dict(read_weights(last))
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    assert "Held-out reward" in out
    check_published(run)
    assert digest(published.items()) == commits(run)[-1]["weights"]["digest"]
    are_of_adapter = [name.endswith((A, B)) for name in published]
    assert all(are_of_adapter) if publish == "adapter" else not any(are_of_adapter)
    assert "learner.lora.rank" in (run / "report" / "index.html").read_text()


def test_running_responses_go_on_with_the_next_adapter(launcher: Launcher, tmp_path: Path) -> None:
    """Over the cache of older ones."""
    run = tmp_path / "kept"
    settings = (ADAPTER, "num_steps=3", "scheduling.at_update=keep", f'run_name="{run.name}"')
    finished = launcher.run(tmp_path, *settings, preset="tiny-async")
    assert finished.code == 0, finished.err
    check_published(run)
    check(run, async_ratio=1.0, num_steps=3)


def test_episodes_train_an_adapter(launcher: Launcher, tmp_path: Path) -> None:
    settings = (ADAPTER, 'run_name="games"', "sampling.max_response_tokens=32")
    finished = launcher.run(tmp_path, *settings, preset="tiny-agent")
    assert finished.code == 0, finished.err
    check_published(tmp_path / "games")
