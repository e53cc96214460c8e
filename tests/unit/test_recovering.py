"""Going on after workers that die: as often as allowed, then with the last reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from record_factories import make_request

from artifacts import layout
from artifacts.checkpoint import Checkpoints
from artifacts.records import VersionSpan, WeightsRef
from artifacts.store import Store
from flows import recovery
from tasks import checkpointing as durable
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner import replay
from tasks.learner.ranks import PeerLost
from tasks.learner.replay import ReplayDiffers
from tasks.run.run_context import RunContext
from tasks.run.sample_stream import BUFFER
from tests.unit.plan_factories import CONTEXT

RUN = SimpleNamespace(
    context=CONTEXT,
    config=SimpleNamespace(keep=SimpleNamespace(checkpoints=2)),
    weights_of=lambda step: WeightsRef(version=step, path="", digest="committed"),
)
SAMPLED = make_request()


async def no_elastic_workers(report: object) -> None:
    """There is nobody to be told of weights."""


NO_ELASTIC_WORKERS = SimpleNamespace(publish=no_elastic_workers)


def learner_at(version: int) -> SimpleNamespace:
    """A rank that has made the update of this step."""

    async def told() -> int:
        return version

    return SimpleNamespace(version=told)


async def test_a_worker_lost_while_weights_are_restored_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    async def restore_policy(
        context: str, step: int, keep_checkpoints: int, committed: str
    ) -> SimpleNamespace:
        done.append(f"{context} to step {step} as {committed}")
        if "replaced" not in done:
            raise ActorLost("learner-0 was lost during load_checkpoint")
        return SimpleNamespace(weights="weights-4")

    async def start() -> None:
        done.append("started")

    async def replace_lost() -> tuple[str, ...]:
        done.append("replaced")
        return ("learner-0", "learner-1")

    monkeypatch.setattr(recovery, "restore_policy", restore_policy)
    config = SimpleNamespace(max_recoveries=1, keep=SimpleNamespace(checkpoints=2))
    run = SimpleNamespace(
        config=config, context=CONTEXT, weights_of=lambda step: f"committed-{step}"
    )

    async def published(report: SimpleNamespace) -> None:
        done.append(f"elastic workers told of {report.weights}")

    elastic = SimpleNamespace(publish=published)
    fleet = SimpleNamespace(run="run", start=start, replace_lost=replace_lost, elastic=elastic)
    assert await recovery.start_at(run, fleet, 4) == "weights-4"  # type: ignore[arg-type, comparison-overlap]
    restored = "run to step 4 as committed-4"
    told = "elastic workers told of weights-4"
    assert done == ["started", restored, "replaced", restored, told]


async def test_a_worker_lost_while_the_actors_start_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    async def start() -> None:
        done.append("started")
        raise PeerLost("rank 0 lost another rank during join")

    async def replace_lost() -> tuple[str, ...]:
        done.append("replaced")
        return ("learner-0", "learner-1")

    async def restore(run: object, fleet: object, step: int) -> str:
        return f"weights-{step}"

    monkeypatch.setattr(recovery, "restore", restore)
    run: Any = SimpleNamespace(config=SimpleNamespace(max_recoveries=1))
    fleet: Any = SimpleNamespace(run="run", start=start, replace_lost=replace_lost)
    assert str(await recovery.start_at(run, fleet, 4)) == "weights-4"
    assert done == ["started", "replaced"]


def test_recovering_ends_what_a_lost_coordinator_left_in_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control worker dies in mid-round: engines that live on go on with its requests, and would
    refuse to load."""

    async def recover() -> tuple[Mapping[str, int], tuple[VersionSpan, ...]]:
        engine = SimulatedEngine("engine-0", SimulatedEngineConfig())

        async def publish(context: RunContext) -> SimpleNamespace:
            weights = WeightsRef(version=3, path="", digest="committed")
            await engine.load_weights(weights, ())
            return SimpleNamespace(weights=weights)

        async def replace_lost() -> tuple[str, ...]:
            return (BUFFER,)

        monkeypatch.setattr(recovery, "restore_policy", durable.restore_policy.fn)
        monkeypatch.setattr(durable, "learners_of", lambda run: [learner_at(3)])
        monkeypatch.setattr(durable, "publish", publish)
        await engine.submit([SAMPLED])
        fleet = SimpleNamespace(
            run=CONTEXT,
            replace_lost=replace_lost,
            elastic=NO_ELASTIC_WORKERS,
        )
        await recovery.recover(RUN, fleet, 3)  # type: ignore[arg-type]
        left = (await engine.stats()).progress
        await engine.submit([SAMPLED])
        (response,) = await engine.collect(1e6)
        return left, response.versions

    left, versions = run_virtual(recover())
    assert left == {}
    assert [span.version for span in versions] == [3]


async def test_learners_that_an_earlier_attempt_left_without_their_replay_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That attempt made new learners, which begin at version 0, and died of an engine; this one has
    lost the engine alone."""
    told: list[str] = []

    async def replace_lost() -> tuple[str, ...]:
        return ("engine-0",)

    async def replay_training(
        learners: object, store: object, kept: object, step: int, **how: object
    ) -> None:
        told.append(f"replay to step {step}")

    async def publish(context: RunContext) -> SimpleNamespace:
        told.append("publish")
        return SimpleNamespace(weights=WeightsRef(version=3, path="", digest="committed"))

    monkeypatch.setattr(recovery, "restore_policy", durable.restore_policy.fn)
    monkeypatch.setattr(durable, "learners_of", lambda run: [learner_at(0)])
    monkeypatch.setattr(durable, "replay_training", replay_training)
    monkeypatch.setattr(durable, "publish", publish)
    fleet = SimpleNamespace(run=CONTEXT, replace_lost=replace_lost, elastic=NO_ELASTIC_WORKERS)
    await recovery.recover(RUN, fleet, 3)  # type: ignore[arg-type]
    assert told == ["replay to step 3", "publish"]


@pytest.mark.parametrize("version", [3, 4])
async def test_weights_of_the_step_must_be_the_committed_ones_and_later_ones_may_be_published(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async def publish(context: RunContext) -> SimpleNamespace:
        return SimpleNamespace(weights=WeightsRef(version=version, path="", digest="other"))

    monkeypatch.setattr(durable, "learners_of", lambda run: [learner_at(version)])
    monkeypatch.setattr(durable, "publish", publish)
    committed = WeightsRef(version=3, path="", digest="committed")
    if version == 4:  # step 4 was updated when the attempt was lost
        assert await durable.restore_policy.fn(CONTEXT, 3, 2, committed)
    else:
        with pytest.raises(ReplayDiffers, match="older version of this code"):
            await durable.restore_policy.fn(CONTEXT, 3, 2, committed)


def test_a_lost_peer_is_recovered_from_as_a_lost_actor_is() -> None:
    assert {ActorLost, EngineLost, PeerLost} <= set(recovery.RECOVERABLE)


async def test_after_the_last_recovery_the_loss_is_raised_and_other_errors_at_once() -> None:
    attempts: list[int] = []

    async def lost(attempt: int) -> None:
        attempts.append(attempt)
        raise EngineLost(f"engine-0, attempt {attempt}")

    async def wrong(attempt: int) -> None:
        attempts.append(attempt)
        raise ValueError("not the cluster's fault")

    with pytest.raises(EngineLost, match="attempt 3"):
        await recovery.retry(lost, 2, "step=1")
    with pytest.raises(ValueError, match="fault"):
        await recovery.retry(wrong, 2, "step=1")
    assert attempts == [1, 2, 3, 1]


@pytest.mark.parametrize(("damaged", "restored"), [((), 3), ((3,), 2), ((2, 3), 0)])
async def test_a_damaged_checkpoint_is_passed_over_for_an_earlier_one_or_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: tuple[int, ...], restored: int
) -> None:
    store = Store.open(str(tmp_path))
    checkpoints = Checkpoints(store, keep=2)
    for step in (2, 3):
        with checkpoints.aside(tmp_path) as aside:
            (aside / "shard").write_bytes(b"moments")
            checkpoints.commit(step, aside)
    for step in damaged:
        store.write(f"{layout.checkpoint_dir(step)}/shard", b"Moments")
    loaded: list[str] = []

    async def load_checkpoint(path: str) -> None:
        loaded.append(path)

    learner = SimpleNamespace(load_checkpoint=load_checkpoint, version=learner_at(0).version)
    assert await replay._restored([learner], checkpoints, 3, tmp_path) == restored  # type: ignore[list-item]
    assert loaded == ([f"{tmp_path}/{layout.checkpoint_dir(restored)}"] if restored else [])
    told = [record.message for record in caplog.records]
    assert len(told) == len(damaged)
    assert all("shard must be as it was saved" in line for line in told)
