"""Environments in the caller's process: the same answers and failures, no walls."""

from __future__ import annotations

import math

import pytest

from artifacts.episodes import Ending
from research.benchmarks.direct_environments import DirectEnvironments
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EnvironmentProcessConfig


class Echo(EnvironmentSettings):
    """Says what it hears; some words are more than that."""

    def build(self) -> EchoEnvironment:
        return EchoEnvironment()


class EchoEnvironment:
    def reset(self, seed: int) -> str:
        if seed < 0:
            raise LookupError(f"no seed {seed}")
        return f"seed {seed}"

    def step(self, text: str) -> Transition:
        if text == "raise":
            raise ZeroDivisionError("by\nzero")
        return Transition(text, math.nan if text == "nan" else 1.0, text == "last", False, {})


async def test_episodes_are_apart() -> None:
    hosts = DirectEnvironments()
    assert await hosts.reset("one", Echo(), 1) == "seed 1"
    assert await hosts.reset("two", Echo(), 2) == "seed 2"
    assert await hosts.step("one", "last") == Transition("last", 1.0, True, False, {})
    await hosts.end("one")
    await hosts.end("one")
    with pytest.raises(EnvironmentFailed, match="knows no such episode"):
        await hosts.step("one", "more")
    assert (await hosts.step("two", "more")).observation == "more"
    hosts.close()
    with pytest.raises(EnvironmentFailed, match="knows no such episode"):
        await hosts.step("two", "more")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("raise", "ZeroDivisionError: by zero"),
        ("nan", "a reward must be a finite number from -1,000,000 to 1,000,000, got nan"),
        ("much too long", "at most 10 characters, got 13"),
    ],
)
async def test_failures_are_typed_and_end_the_episode(text: str, detail: str) -> None:
    hosts = DirectEnvironments(EnvironmentProcessConfig(max_observation_chars=10))
    await hosts.reset("one", Echo(), 1)
    with pytest.raises(EnvironmentFailed, match=detail) as raised:
        await hosts.step("one", text)
    assert raised.value.ending is Ending.CRASHED
    with pytest.raises(EnvironmentFailed, match="knows no such episode"):
        await hosts.step("one", "more")


async def test_a_reset_that_fails_begins_nothing() -> None:
    hosts = DirectEnvironments()
    with pytest.raises(EnvironmentFailed, match="LookupError: no seed -1"):
        await hosts.reset("one", Echo(), -1)
    with pytest.raises(EnvironmentFailed, match="knows no such episode"):
        await hosts.step("one", "more")
