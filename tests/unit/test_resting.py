"""Engines that share their GPUs with learners give them back before anything trains there, and only
where the run says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from tasks import durable, rollout, train
from tasks.cluster.actors import ActorLost
from tasks.engines.base import EngineLost
from tasks.plan import RunContext
from tasks.scheduling.stream_training import ScaleDown
from tests.unit.plan_factories import CONTEXT, make_step_plan

SHARED = replace(CONTEXT, engines=("engine-0", "engine-1"), engines_rest=True)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order; engines tell when they rest."""
    told: list[str] = []

    class Resting:
        def __init__(self, name: str) -> None:
            self._name = name

        @classmethod
        def connect(cls, run_id: str, name: str, deadline_s: float) -> Resting:
            return cls(name)

        async def rest(self) -> None:
            told.append(f"{self._name} rests")

    monkeypatch.setattr(train, "RemoteEngine", Resting)
    return told


async def test_engines_rest_only_where_the_run_says_so(told: list[str]) -> None:
    await train.rest_engines(CONTEXT, CONTEXT.engines)
    assert told == []
    await train.rest_engines(SHARED, ("engine-1",))
    assert told == ["engine-1 rests"]


async def test_an_engine_whose_worker_is_gone_has_nothing_to_give_back(
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = ActorLost("engine-0 was lost during rest")

    async def rest(engine: str, cause: Exception) -> None:
        if engine == "engine-0":
            raise EngineLost(str(cause)) from cause
        told.append(f"{engine} rests")

    def engines(cause: Exception) -> Callable[..., list[SimpleNamespace]]:
        def connected(run: RunContext, names: Sequence[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(rest=partial(rest, name, cause)) for name in names]

        return connected

    monkeypatch.setattr(train, "engines_of", engines(gone))
    await train.rest_engines(SHARED, SHARED.engines)
    assert told == ["engine-1 rests"]
    monkeypatch.setattr(train, "engines_of", engines(TimeoutError("rest did not answer")))
    with pytest.raises(EngineLost, match="did not answer"):
        await train.rest_engines(SHARED, SHARED.engines)


async def test_engines_rest_before_training_is_replayed(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replay(run: RunContext, store: object, kept: object, step: int, at: object) -> None:
        told.append(f"replay to step {step}")

    async def publish(run: RunContext) -> SimpleNamespace:
        told.append("publish")
        return SimpleNamespace(weights=SimpleNamespace(version=3))

    async def versions_of(run: RunContext) -> list[int]:
        return [0]

    monkeypatch.setattr(durable, "versions_of", versions_of)
    monkeypatch.setattr(durable, "_replay", replay)
    monkeypatch.setattr(durable, "publish", publish)
    await durable.restore_policy.fn(SHARED, 3, 2, None)
    assert told == ["engine-0 rests", "engine-1 rests", "replay to step 3", "publish"]


async def test_engines_that_are_freed_in_mid_round_rest_before_their_learners_hear_of_it(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        async def put(self, queue: str, items: Sequence[object]) -> None:
            told.append(f"{queue} hears of {type(items[0]).__name__}")

    monkeypatch.setattr(rollout, "_engines", lambda plan: [])
    plan = replace(make_step_plan(kind="sync"), run=SHARED)
    freed: list[str] = []
    inputs = rollout._inputs(plan, {}, Stream(), [], freed)  # type: ignore[arg-type]
    await inputs.on_freed(ScaleDown(engines=("engine-1",), learners=("learner-1",)))
    assert told == ["engine-1 rests", "groups hears of ScaleDown"]
    assert freed == ["learner-1"]


async def test_engines_rest_when_a_recorded_round_goes_straight_to_training(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        async def put(self, queue: str, items: Sequence[object]) -> None:
            told.append(f"{len(items)} {queue}")

        async def close(self, queue: str) -> None:
            told.append(f"{queue} end")

    recorded = SimpleNamespace(read_groups=lambda step: ["group"])
    monkeypatch.setattr(rollout, "journal_of", lambda plan: recorded)
    monkeypatch.setattr(rollout, "read_round", lambda plan: "recorded")
    plan = replace(make_step_plan(), run=SHARED)
    assert await rollout._rollout(plan, Stream()) == "recorded"  # type: ignore[arg-type, comparison-overlap]
    assert told == ["engine-0 rests", "engine-1 rests", "1 groups", "generated end", "groups end"]
