"""Which of the recorded episodes are looked at: what they must be, and in which order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from artifacts.reports.episode_figures import PlayedResponse, played
from artifacts.reports.transcript import ending_of, outcome_of
from artifacts.tables import ResponseRow

Order = Literal["recorded", "longest", "shortest", "best", "worst"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChoice:
    """What is wanted; an empty text or None wants any."""

    outcome: str = ""  # as `outcome_of` names it
    ending: str = ""  # as `ending_of` names it
    least_reward: float | None = None  # which leaves out what has no verdict
    order: Order = "recorded"  # which come first

    def chosen(self, rows: Iterable[ResponseRow]) -> list[ResponseRow]:
        """The episodes among these responses that match, in order."""
        found = [episode for episode in played(rows) if self._matches(episode)]
        return [episode.row for episode in sorted(found, key=PLACES[self.order])]

    def _matches(self, found: PlayedResponse) -> bool:
        reward = reward_of(found)
        return (
            self.outcome in ("", outcome_of(found.row))
            and self.ending in ("", ending_of(found.episode))
            and (self.least_reward is None or (reward is not None and reward >= self.least_reward))
        )


def reward_of(found: PlayedResponse) -> float | None:
    """What it was worth; None without a verdict."""
    score = found.row.response.score
    return None if score is None else score.reward


def outcome_counts(rows: Sequence[ResponseRow]) -> str:
    """How many episodes there are of each outcome and each ending."""
    episodes = played(rows)
    outcomes = Counter(outcome_of(found.row) for found in episodes)
    endings = Counter(ending_of(found.episode) for found in episodes)
    return f"{_counts(outcomes)}; ended {_counts(endings)}"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.most_common())


def _length(found: PlayedResponse) -> tuple[int, int]:
    """Turns, and tokens among as many turns."""
    return found.num_turns, found.row.response.generated.num_sampled


def _by_reward(sign: int) -> Callable[[PlayedResponse], tuple[bool, float]]:
    """Those without a verdict come last, whichever end is first."""

    def place(found: PlayedResponse) -> tuple[bool, float]:
        reward = reward_of(found)
        return reward is None, sign * (reward or 0.0)

    return place


# where an episode stands in an order: the smallest comes first
PLACES: dict[Order, Callable[[PlayedResponse], tuple[float, ...]]] = {
    "recorded": lambda found: (),
    "longest": lambda found: tuple(-length for length in _length(found)),
    "shortest": _length,
    "best": _by_reward(-1),
    "worst": _by_reward(1),
}
