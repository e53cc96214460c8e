"""An environment's answer to a turn, and the error of an environment that never answers. Runs in
whatever interpreter an environment has: standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Transition(NamedTuple):
    """The environment's answer to a turn of the model."""

    observation: str  # what the model reads next; at the end what it would have read
    reward: float  # of this turn
    terminated: bool  # the episode reached an end of its own
    truncated: bool  # a bound of the environment cut it
    info: Mapping[str, str]  # details for the records


class Unusable(ValueError):
    """Raised for an environment that can never work. The message has the cure."""
