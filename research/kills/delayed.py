"""Environments that are made as slow and as unreliable as real ones are, for experiments.

A run plays one as an environment of the user's, by the import path of `delayed`:

    {"kind": "custom", "path": "research.kills.delayed:delayed",
     "kwargs": {"environment": {"kind": "guess"}, "mean_s": 1, "slow_episodes": 0.03}}

The fate of a turn is a function of seed, turn and the actions so far: the same episode meets the
same fate again, and the episodes of a group, which share their seed, part with their actions. Every
share is 0 unless it is set.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from artifacts.datasets.rows import Message
from tasks.environments.adapters.package import PackageConfig
from tasks.environments.base import Environment, EnvironmentSettings, RequestedProgram, Transition
from tasks.environments.registry import EnvironmentConfig


class InjectedFault(NamedTuple):
    """Delay and faults of one turn."""

    latency_s: float  # how long the environment takes
    crashes: bool  # it raises instead
    hangs: bool  # it does not return for `hang_s`


class DelayedConfig(EnvironmentSettings):
    """Delay another environment."""

    environment: EnvironmentConfig = Field(..., description="The environment that is delayed.")
    mean_s: float = Field(0.0, ge=0, description="Mean seconds of a reset or a step.")
    deviation_s: float = Field(
        0.0,
        ge=0,
        description="Their standard deviation; as large as the mean, a gamma is exponential.",
    )
    distribution: Literal["gamma", "normal"] = Field(
        "gamma", description="Their distribution; a normal one is cut at 0."
    )
    slow_episodes: float = Field(
        0.0, ge=0, le=1, description="Share of the episodes whose every turn is slow."
    )
    slow_turns: float = Field(0.0, ge=0, le=1, description="Share of the turns that are slow.")
    slow_factor: float = Field(10.0, ge=1, description="How much longer a slow turn takes.")
    crash_turns: float = Field(0.0, ge=0, le=1, description="Share of the turns that raise.")
    hang_turns: float = Field(0.0, ge=0, le=1, description="Share of the turns that hang.")
    hang_s: float = Field(
        3600.0, gt=0, description="Seconds of a turn that hangs; longer than a host waits."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.environment, PackageConfig):
            raise ValueError(
                "a delayed environment must be one of this interpreter, got"
                f" {self.environment.kind!r}, which has one of its own; delay another kind"
            )
        turns = self.environment.max_turns
        if "max_turns" in self.model_fields_set and self.max_turns != turns:
            raise ValueError(
                f"max_turns must be the delayed environment's own ({turns}), got"
                f" {self.max_turns}; set environment.max_turns"
            )
        object.__setattr__(self, "max_turns", turns)  # the field is frozen once it is made
        return self

    @property
    def needs_network(self) -> bool:  # type: ignore[override]  # of a class elsewhere
        return self.environment.needs_network

    @property
    def slow_imports(self) -> tuple[str, ...]:  # type: ignore[override]  # likewise
        return (type(self.environment).__module__, *self.environment.slow_imports)

    @property
    def source(self) -> str:
        return self.environment.source

    def head(self) -> tuple[Message, ...]:
        return self.environment.head()

    def program_in(self, text: str) -> RequestedProgram | None:
        return self.environment.program_in(text)

    def build(self) -> Environment:
        return Delayed(self)

    def fate(self, seed: int, actions: Sequence[str]) -> InjectedFault:
        """Delay and faults of the reset (no action yet) or of the step with the last action."""
        rng = _rng("turn", seed, actions)
        is_slow = rng.random() < self.slow_turns
        crashes = rng.random() < self.crash_turns
        hangs = rng.random() < self.hang_turns
        is_slow = is_slow or _rng("episode", seed, actions[:1]).random() < self.slow_episodes
        latency_s = self._latency(rng) * (self.slow_factor if is_slow else 1.0)
        return InjectedFault(latency_s=latency_s, crashes=crashes, hangs=hangs)

    def _latency(self, rng: random.Random) -> float:
        mean, deviation = self.mean_s, self.deviation_s
        if self.distribution == "normal":
            return max(0.0, rng.gauss(mean, deviation))
        if not (mean and deviation):
            return mean
        return rng.gammavariate((mean / deviation) ** 2, deviation**2 / mean)


def delayed(**given: Any) -> Delayed:  # Any: the fields of DelayedConfig
    """The environment that a custom environment's `kwargs` describe."""
    return Delayed(DelayedConfig(**given))


def _rng(what: str, seed: int, actions: Sequence[str]) -> random.Random:
    """A generator of its own for every seed and every sequence of actions."""
    said = "\x00".join(actions).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(said, digest_size=8).hexdigest()
    return random.Random(f"delayed/{what}/{seed}/{len(actions)}/{digest}")


class Delayed:
    """One episode, delayed."""

    def __init__(
        self, config: DelayedConfig, sleep: Callable[[float], Any] = time.sleep
    ) -> None:  # Any: what a sleep returns is not used
        self._config, self._sleep = config, sleep
        self._inner = config.environment.build()

    def reset(self, seed: int) -> str:
        self._seed, self._actions = seed, list[str]()
        self._meet_fate()
        return self._inner.reset(seed)

    def step(self, text: str) -> Transition:
        self._actions.append(text)
        self._meet_fate()
        return self._inner.step(text)

    def _meet_fate(self) -> None:
        fate = self._config.fate(self._seed, self._actions)
        self._sleep(fate.latency_s)
        if fate.hangs:
            self._sleep(self._config.hang_s)
        if fate.crashes:
            raise RuntimeError(f"a crash of turn {len(self._actions)}, as configured")
