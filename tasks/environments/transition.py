"""What an environment gives for a turn, and how it says that it never will. Runs in whatever
interpreter an environment has: standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Transition(NamedTuple):
    """What a turn of the model led to."""

    observation: str  # what the model reads next; at the end what it would have read
    reward: float  # of this turn
    terminated: bool  # the episode reached an end of its own
    truncated: bool  # a bound of the environment cut it
    info: Mapping[str, str]  # details for the records


class Unusable(ValueError):
    """Trying again cannot help this environment: something is missing, or its configuration is
    wrong. The sentence has the cure."""
