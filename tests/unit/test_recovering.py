"""Going on after workers that die: as often as allowed, then with the last reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows import train
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost


async def test_a_worker_lost_while_weights_are_restored_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def restore_policy(context: str, step: int, keep_checkpoints: int, committed: str) -> SimpleNamespace:
        done.append(f"{context} to step {step} as {committed}")
        if len(done) == 1:
            raise ActorLost("learner-0 was lost during load_checkpoint")
        return SimpleNamespace(weights="weights-4")

    async def replace_lost() -> tuple[str, ...]:
        done.append("replaced")
        return ("learner-0", "learner-1")

    monkeypatch.setattr(train, "restore_policy", restore_policy)
    config = SimpleNamespace(max_recoveries=1, keep=SimpleNamespace(checkpoints=2))
    run = SimpleNamespace(config=config, weights_of=lambda step: f"committed-{step}")
    fleet = SimpleNamespace(run="run", replace_lost=replace_lost)
    assert await train.restored(run, fleet, 4) == "weights-4"  # type: ignore[arg-type, comparison-overlap]
    assert done == ["run to step 4 as committed-4", "replaced", "run to step 4 as committed-4"]


async def test_after_the_last_recovery_the_loss_is_raised_and_other_errors_at_once() -> None:
    attempts: list[int] = []

    async def lost(attempt: int) -> None:
        attempts.append(attempt)
        raise EngineLost(f"engine-0, attempt {attempt}")

    async def wrong(attempt: int) -> None:
        attempts.append(attempt)
        raise ValueError("not the cluster's fault")

    with pytest.raises(EngineLost, match="attempt 3"):
        await train.persisting(lost, 2, "step=1")
    with pytest.raises(ValueError, match="fault"):
        await train.persisting(wrong, 2, "step=1")
    assert attempts == [1, 2, 3, 1]
