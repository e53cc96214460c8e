"""Engines that share their GPUs with learners give them back before anything trains there, and only
where the run says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tasks import checkpointing as durable
from tasks import rollout
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.progress import ProgressReporter
from tasks.run import actor_handles as remotes
from tasks.run.run_context import RunContext
from tasks.run.sample_buffer import Stage
from tasks.scheduling.stream_training import ScaleDown
from tests.unit.plan_factories import CONTEXT, make_step_plan

SHARED = replace(
    CONTEXT, engines=("engine-0", "engine-1"), engine=VllmEngineConfig(sleep_mode=True)
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order; engines tell when they rest."""
    told: list[str] = []

    class Resting:
        def __init__(self, name: str) -> None:
            self._name = name

        @classmethod
        def connect(cls, run_id: str, name: str, deadline_s: float, asker: object) -> Resting:
            return cls(name)

        async def sleep(self) -> None:
            told.append(f"{self._name} rests")

    monkeypatch.setattr(remotes, "RemoteEngine", Resting)
    return told


async def test_engines_rest_only_where_the_run_says_so(told: list[str]) -> None:
    await remotes.sleep_engines(CONTEXT, CONTEXT.engines)
    assert told == []
    await remotes.sleep_engines(SHARED, ("engine-1",))
    assert told == ["engine-1 rests"]


async def test_an_engine_whose_worker_is_gone_has_nothing_to_give_back(
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = ActorLost("engine-0 was lost during rest")

    async def sleep(engine: str, cause: Exception) -> None:
        if engine == "engine-0":
            raise EngineLost(str(cause)) from cause
        told.append(f"{engine} rests")

    def engines(cause: Exception) -> Callable[..., list[SimpleNamespace]]:
        def connected(run: RunContext, names: Sequence[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(sleep=partial(sleep, name, cause)) for name in names]

        return connected

    monkeypatch.setattr(remotes, "engines_of", engines(gone))
    await remotes.sleep_engines(SHARED, SHARED.engines)
    assert told == ["engine-1 rests"]
    monkeypatch.setattr(remotes, "engines_of", engines(TimeoutError("rest did not answer")))
    with pytest.raises(EngineLost, match="did not answer"):
        await remotes.sleep_engines(SHARED, SHARED.engines)


async def test_engines_rest_before_training_is_replayed(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replay_training(
        learners: object, store: object, kept: object, step: int, **how: object
    ) -> None:
        told.append(f"replay to step {step}")

    async def publish(run: RunContext) -> SimpleNamespace:
        told.append("publish")
        return SimpleNamespace(weights=SimpleNamespace(version=3))

    async def versions_of(learners: object) -> list[int]:
        return [0]

    monkeypatch.setattr(durable, "learners_of", lambda run: [])
    monkeypatch.setattr(durable, "versions_of", versions_of)
    monkeypatch.setattr(durable, "replay_training", replay_training)
    monkeypatch.setattr(durable, "publish", publish)
    await durable.restore_policy.fn(SHARED, 3, 2, None)
    assert told == ["engine-0 rests", "engine-1 rests", "replay to step 3", "publish"]


async def test_engines_that_are_freed_in_mid_round_rest_before_their_learners_hear_of_it(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        async def put(self, stage: Stage[object], items: Sequence[object]) -> None:
            told.append(f"{stage.name} hears of {type(items[0]).__name__}")

    monkeypatch.setattr(rollout, "engines_of", lambda run, names, asker: [])
    plan = replace(make_step_plan(kind="sync"), run=SHARED)
    inputs = rollout.round_inputs(plan, {}, Stream(), ProgressReporter(plan))  # type: ignore[arg-type]
    await inputs.on_freed(ScaleDown(engines=("engine-1",), learners=("learner-1",)))
    assert told == ["engine-1 rests", "grouped hears of ScaleDown"]


class Stream:
    """Tells what is handed to training."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    async def put(self, stage: Stage[object], items: Sequence[object]) -> None:
        self._told.append(f"{len(items)} {stage.name}")

    async def close(self, stage: Stage[object]) -> None:
        self._told.append(f"{stage.name} ends")


async def read_back(kind: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = SimpleNamespace(read_groups=lambda step: ["group"])
    monkeypatch.setattr(rollout, "journal_of", lambda plan: recorded)
    monkeypatch.setattr(rollout, "read_round", lambda store, step: "recorded")
    plan = replace(make_step_plan(kind=kind), run=SHARED)
    assert await rollout.roll_out(plan, Stream(told)) == "recorded"  # type: ignore[arg-type, comparison-overlap]


async def test_engines_rest_when_a_recorded_round_goes_straight_to_training(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await read_back("short", told, monkeypatch)
    assert told[:2] == ["engine-0 rests", "engine-1 rests"]
    assert told[2:] == ["1 grouped", "generated ends", "grouped ends"]


async def test_a_recorded_evaluation_hands_no_group_to_training_which_nobody_would_take(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await read_back("evaluate", told, monkeypatch)
    assert told == ["generated ends", "grouped ends"]
