"""A run whose advantages a critic gives, while rounds overlap training: the engine is simulated,
policy and critic learn, die and come back."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.asynchronous_records import check, commits
from tests.flows.conftest import ENDS_WITHIN_S, SIMULATED, Launcher, wait_for, worker_of

pytestmark = pytest.mark.flow

NUM_STEPS = 5
SETTINGS = (
    *SIMULATED,
    f"num_steps={NUM_STEPS}",
    "learner.advantage.kind=gae",
    "learner.critic.warmup_steps=1",
    "engine.profile.step_s=0.05",
    "keep.checkpoint_every_steps=2",
)


def test_policy_and_critic_learn_from_overlapping_rounds_and_come_back_together(
    launcher: Launcher, tmp_path: Path
) -> None:
    """The learner dies after step 3, whose training is replayed from the checkpoint of step 2: a
    policy that the critic had led elsewhere would not have the digest of its commit."""
    run = tmp_path / "critic"
    process = launcher.start(tmp_path, *SETTINGS, f'run_name="{run.name}"', preset="tiny-async")
    wait_for(run / "steps" / "00003.json", process)
    worker_of(process, "learner-0").send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)
    done = commits(run)
    figures = [commit["metrics"] for commit in done]
    assert max(step["round/attempts"] for step in figures) > 1
    assert max(step["lag/mean_versions"] for step in figures) > 0
    assert [step["train/skipped_critic_warmup"] for step in figures] == [1, 0, 0, 0, 0]
    assert [step["train/applied"] for step in figures] == [0, 1, 1, 1, 1]
    assert all(math.isfinite(step["train/value_loss"]) for step in figures)
    assert all(step["train/critic_grad_norm"] > 0 for step in figures)
    assert all(step["train/critic_skipped"] == 0 for step in figures)
    digests = [commit["weights"]["digest"] for commit in done]
    assert len(set(digests)) == NUM_STEPS, "every update changed the weights"
    assert list((run / "checkpoints").glob("*/**/critic")), "the critic is kept with the policy"
    rewards = {
        row["reward"]
        for path in (run / "responses").glob("step=*")
        for row in pq.read_table(path).to_pylist()
        if row["fate"] == "trained"
    }
    assert len(rewards) > 1, "there was something to learn"
