"""An environment's answer to a turn, and the error of an environment that never answers. Runs in
whatever interpreter an environment has: standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class PicturedText(str):
    """An observation with pictures, which stand before its text."""

    pictures: tuple[bytes, ...]  # whole files

    @classmethod
    def of(cls, text: str, pictures: Iterable[bytes]) -> PicturedText:
        made = cls(text)
        made.pictures = tuple(pictures)
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True and self.pictures == pictures_in(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        shown = (hashlib.sha256(data).hexdigest()[:8] for data in self.pictures)
        return f"{str.__repr__(self)} under the pictures {', '.join(shown)}"


def pictures_in(observation: object) -> tuple[bytes, ...]:
    """The pictures of an observation; none of a text alone."""
    return observation.pictures if isinstance(observation, PicturedText) else ()


class Transition(NamedTuple):
    """The environment's answer to a turn of the model."""

    # what the model reads next, maybe a `PicturedText`; at the end what it would have read
    observation: str
    reward: float  # of this turn
    terminated: bool  # the episode reached an end of its own
    truncated: bool  # a bound of the environment cut it
    info: Mapping[str, str]  # details for the records


class Unusable(ValueError):
    """Raised for an environment that can never work. The message has the cure."""
