"""The machine and the work of a simulated step, as the step asks for them.

    GradientWork   tokens that a learner rank computes for the groups that it is given
    MachineCosts   seconds that a cluster with a model on it takes for each kind of work
    RunWork        prompts, lengths of answers, rewards, gradients

All answer in seconds and tokens and decide nothing: every decision is the real scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.writers import Lengths
from tasks.learner.dealing import GroupPart
from tasks.learner.streaming import tokens_of
from tasks.rounds.records import ScoreFeed
from tasks.scheduling.layout_planner import ThroughputProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientWork:
    """The cost of accepted groups for a learner rank."""

    flat_costs: bool  # whether groups without a gradient are computed, too: see `balance`
    num_tokens: Callable[[Sequence[GroupPart]], int]  # that the parts of a call are


def every_token(parts: Sequence[GroupPart]) -> int:
    """Count each response once, and the prompt of a part once."""
    return sum(map(tokens_of, parts))


EVERY_TOKEN = GradientWork(flat_costs=True, num_tokens=every_token)


class MachineCosts(Protocol):
    """Seconds that a cluster with a model on it takes for each kind of work."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        ...

    @property
    def devices_per_host(self) -> int:
        """Devices of a host; no replica spans two hosts."""
        ...

    def sizes(self, num_devices: int, largest: int) -> tuple[int, ...]:
        """Tensor-parallel sizes that so many of its devices and the model's heads allow."""
        ...

    def engine(self, size: int) -> SimulatedEngineConfig:
        """Speed and room of a replica over so many devices."""
        ...

    def profile(self, sizes: Sequence[int]) -> ThroughputProfile:
        """The profile that calibration would measure of replicas of these sizes."""
        ...

    def train_s_per_token(self) -> float:
        """Seconds that one device takes to train a computed token: log-probabilities, forward,
        backward."""
        ...

    def update_s(self) -> float:
        """Seconds from complete gradients to new weights."""
        ...

    def publish_s(self) -> float:
        """Seconds from new weights to engines that generate with them."""
        ...

    def relayout_s(self, old: int, new: int) -> float:
        """Seconds in which the engines are rebuilt with another tensor-parallel size."""
        ...

    def free_s(self) -> float:
        """Seconds in which a device goes over from generating to training."""
        ...


class RunWork(Protocol):
    """The prompts of a run, the lengths of its answers, and the stage that scores them."""

    @property
    def longest_tokens(self) -> int:
        """Bound on the tokens of a response."""
        ...

    def domains(self, num_rows: int) -> Sequence[str]:
        """The domain of every row of a data set of so many."""
        ...

    def prompt_tokens(self, prompt_id: str) -> int:
        """The length of a prompt."""
        ...

    def question(self, prompt_id: str) -> tuple[int, ...]:
        """The tokens of a prompt."""
        ...

    def writer(self, step: int, seed: int) -> Lengths:
        """The lengths of the responses of a step."""
        ...

    def feed(self, machine: Any, seed: int) -> ScoreFeed:  # Any: what its judge runs on
        """The reward stage of a run."""
        ...

    def gradients(self, seed: int) -> GradientWork:
        """The cost of the run's groups for the learner."""
        ...
