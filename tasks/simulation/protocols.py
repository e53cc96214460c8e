"""What a simulated step needs to know of its machine and its work.

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
    num_tokens: Callable[[Sequence[GroupPart]], int]  # computed for the parts of one call


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
        """Devices of one host; no replica spans two hosts."""
        ...

    def sizes(self, num_devices: int, largest: int) -> tuple[int, ...]:
        """Returns the tensor-parallel sizes, up to `largest`, that num_devices and the model's
        heads allow."""
        ...

    def engine(self, size: int) -> SimulatedEngineConfig:
        """Returns speed and KV capacity of a replica over `size` devices."""
        ...

    def profile(self, sizes: Sequence[int]) -> ThroughputProfile:
        """Returns the profile that calibration would measure on replicas of these sizes."""
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
        """Seconds in which the engines are rebuilt from the old to the new tensor-parallel size."""
        ...

    def free_s(self) -> float:
        """Seconds in which a device switches from generating to training."""
        ...


class RunWork(Protocol):
    """The prompts of a run, the lengths of its answers, and the stage that scores them."""

    @property
    def longest_tokens(self) -> int:
        """Bound on the tokens of a response."""
        ...

    def domains(self, num_rows: int) -> Sequence[str]:
        """Returns the domain of every row of a data set of num_rows rows."""
        ...

    def prompt_tokens(self, prompt_id: str) -> int:
        """Returns the length of a prompt in tokens."""
        ...

    def question(self, prompt_id: str) -> tuple[int, ...]:
        """Returns the tokens of a prompt."""
        ...

    def writer(self, step: int, seed: int) -> Lengths:
        """Returns the lengths of the responses of a step."""
        ...

    def feed(self, machine: Any, seed: int) -> ScoreFeed:  # Any: what its judge runs on
        """Returns the reward stage of a run."""
        ...

    def gradients(self, seed: int) -> GradientWork:
        """Returns the cost of the run's groups for the learner."""
        ...
