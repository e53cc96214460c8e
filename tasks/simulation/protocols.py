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

from tasks.engines.simulation.writers import Lengths
from tasks.learner.dealing import GroupPart
from tasks.learner.streaming import tokens_of
from tasks.rounds.records import ScoreFeed
from tasks.simulation.machine import Machine
from tasks.simulation.plain import PlainMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientWork:
    """The cost of accepted groups for a learner rank."""

    flat_costs: bool  # whether groups without a gradient are computed, too: see `balance`
    num_tokens: Callable[[Sequence[GroupPart]], int]  # computed for the parts of one call


def every_token(parts: Sequence[GroupPart]) -> int:
    """Count each response once, and the prompt of a part once."""
    return sum(map(tokens_of, parts))


EVERY_TOKEN = GradientWork(flat_costs=True, num_tokens=every_token)


MachineCosts = Machine | PlainMachine


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
