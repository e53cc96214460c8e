"""Injected delays and faults: as often and as long as they are asked for, the same every time, and
none where none are."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from research.kills.delayed import Delayed, DelayedConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.registry import EnvironmentConfig


def delayed(**given: Any) -> DelayedConfig:
    return DelayedConfig(environment=GuessConfig(max_turns=3), **given)


def latencies(config: DelayedConfig, count: int = 4_000) -> list[float]:
    return [config.fate(seed, ("5",)).latency_s for seed in range(count)]


def test_it_adds_nothing_unless_it_is_asked_to() -> None:
    config = delayed()
    waits: list[float] = []
    slow, plain = Delayed(config, waits.append), config.environment.build()
    assert slow.reset(4) == plain.reset(4)
    assert [slow.step("9") for _ in range(3)] == [plain.step("9") for _ in range(3)]
    assert set(waits) == {0.0}
    assert config.head() == config.environment.head()


@pytest.mark.parametrize(
    ("given", "centre", "spread"),
    [
        ({"mean_s": 2.0}, 2.0, 0.0),
        ({"mean_s": 2.0, "deviation_s": 2.0}, 2.0, 2.0),
        ({"mean_s": 2.0, "deviation_s": 0.5}, 2.0, 0.5),
        ({"mean_s": 2.0, "deviation_s": 0.5, "distribution": "normal"}, 2.0, 0.5),
    ],
)
def test_latencies_have_the_mean_and_the_deviation_asked_for(
    given: Mapping[str, Any], centre: float, spread: float
) -> None:
    drawn = latencies(delayed(**given))
    assert min(drawn) >= 0
    assert mean(drawn) == pytest.approx(centre, rel=0.05)
    assert stdev(drawn) == pytest.approx(spread, rel=0.05, abs=1e-9)


def test_slow_turns_and_episodes_are_as_many_as_asked_for() -> None:
    turns = delayed(mean_s=1.0, slow_turns=0.05, slow_factor=10)
    assert latencies(turns).count(10.0) / 4_000 == pytest.approx(0.05, abs=0.015)
    episodes = delayed(mean_s=1.0, slow_episodes=0.1)
    slow = [seed for seed in range(4_000) if episodes.fate(seed, ("5",)).latency_s == 10.0]
    assert len(slow) / 4_000 == pytest.approx(0.1, abs=0.02)
    for seed in slow[:20]:
        assert episodes.fate(seed, ("5", "6", "7")).latency_s == 10.0, "all its turns are slow"


def test_crashes_and_hangs_are_as_many_as_asked_for() -> None:
    config = delayed(crash_turns=0.04, hang_turns=0.02)
    fates = [config.fate(seed, ("5",)) for seed in range(4_000)]
    assert sum(fate.crashes for fate in fates) / 4_000 == pytest.approx(0.04, abs=0.012)
    assert sum(fate.hangs for fate in fates) / 4_000 == pytest.approx(0.02, abs=0.01)


def test_the_same_episode_meets_the_same_fate_and_a_group_parts_with_its_actions() -> None:
    config = delayed(mean_s=1.0, deviation_s=1.0)
    assert config.fate(1, ("5", "6")) == config.fate(1, ("5", "6"))
    assert config.fate(1, ()) == config.fate(1, ()), "the reset is the group's"
    drawn = {config.fate(1, actions) for actions in [(), ("5",), ("6",), ("5", "6"), ("56",)]}
    assert len(drawn) == 5


def test_a_crash_raises_and_a_hang_outlasts_a_host() -> None:
    crashing = Delayed(delayed(crash_turns=1.0), lambda seconds: None)
    with pytest.raises(RuntimeError, match="a crash of turn 0, as configured"):
        crashing.reset(0)
    waits: list[float] = []
    hanging = Delayed(delayed(hang_turns=1.0, hang_s=77.0), waits.append)
    hanging.reset(0)
    assert waits == [0.0, 77.0]


def test_it_pickles_between_turns() -> None:
    config = delayed(slow_episodes=0.5, slow_turns=0.5)
    whole, resumed = config.build(), config.build()
    assert whole.reset(2) == resumed.reset(2)
    for action in ("3", "9", "12"):
        resumed = pickle.loads(pickle.dumps(resumed))
        assert whole.step(action) == resumed.step(action)


def test_its_turns_are_those_of_the_environment_it_delays() -> None:
    given = {"environment": {"kind": "guess", "max_turns": 3}, "mean_s": 1}
    config = DelayedConfig.model_validate(given)
    assert config == delayed(mean_s=1.0)
    assert config.max_turns == 3
    assert DelayedConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError, match=r"own \(3\), got 9; set environment.max_turns"):
        DelayedConfig.model_validate({**given, "max_turns": 9})


def test_a_run_plays_it_as_an_environment_of_the_users() -> None:
    adapter: TypeAdapter[EnvironmentConfig] = TypeAdapter(EnvironmentConfig)
    game = {"kind": "guess", "style": "terse", "max_turns": 3}
    kwargs = {"environment": game, "slow_episodes": 0.5}
    path = "research.kills.delayed:delayed"
    settings = adapter.validate_python({"kind": "custom", "path": path, "kwargs": kwargs})
    plain = GuessConfig.model_validate(game)
    assert settings.head() == plain.head()
    slow, quick = pickle.loads(pickle.dumps(settings.build())), plain.build()
    assert slow.reset(4) == quick.reset(4)
    assert [slow.step("9") for _ in range(3)] == [quick.step("9") for _ in range(3)]
