"""How an episode ended, in the words of its record."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.episodes import Ending, Episode
from artifacts.records import FinishReason

BOUNDS = (Ending.TRUNCATED, Ending.TURNS, Ending.TOKENS, Ending.TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of an episode."""

    ending: Ending | None  # None of one that was stopped
    detail: str = ""  # the reason in a few words
    last_observation: str = ""  # what the model never read

    @classmethod
    def of(cls, episode: Episode) -> End:
        """That of a recorded one."""
        return cls(
            ending=episode.ending,
            detail=episode.detail,
            last_observation=episode.last_observation,
        )

    @property
    def finish_reason(self) -> FinishReason:
        """As responses of a single turn say it."""
        if self.ending is None:
            return "aborted"
        return "length" if self.ending in BOUNDS else "stop"


STOPPED = End(ending=None)
