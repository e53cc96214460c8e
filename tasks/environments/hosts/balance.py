"""Which worker of environments the next episode begins at: the one where it is expected to wait
least. Pure.

    expected wait = seconds of a step there x (episodes there + 1)
                  + seconds an episode holds its place x (places asked for beyond those there are)
                    / places

A worker that answers half as fast as another one gets half as many episodes; one that is full gets
none as long as another has room and is not slower by more than the wait. Before anything is known
of a worker it counts as the mean of the others, so that all are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tasks.environments.hosts.report import PoolLoad

WEIGHT = 0.2  # of a new reading in a running mean


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What an engine knows of one worker of environments."""

    step_s: float | None = None  # running mean of a step as the caller waits; None before the first
    held_s: float | None = None  # running mean of the time from an episode's reset to its end
    own: int = 0  # episodes of this engine there, those that wait for a place among them
    others: int = 0  # those of other engines, when it last answered
    num_places: int = 1  # processes there

    @property
    def num_episodes(self) -> int:
        """All that are there, as far as known."""
        return self.own + self.others

    def begun(self) -> WorkerView:
        """This engine has sent one more episode there."""
        return replace(self, own=self.own + 1)

    def ended(self, held_s: float | None = None) -> WorkerView:
        """One of this engine's episodes is there no more; held_s: how long, where it had begun."""
        known = self.held_s if held_s is None else _mean(self.held_s, held_s)
        return replace(self, own=self.own - 1, held_s=known)

    def stepped(self, wall_s: float) -> WorkerView:
        """A step was answered."""
        return replace(self, step_s=_mean(self.step_s, wall_s))

    def told(self, load: PoolLoad) -> WorkerView:
        """It said how full it is."""
        others = load.num_episodes + load.num_waiting - self.own
        return replace(self, others=max(0, others), num_places=load.num_places)

    def expected_wait_s(self, step_s: float, held_s: float) -> float:
        """Of the next episode there; step_s, held_s: what to take where nothing is known of it."""
        step_s = step_s if self.step_s is None else self.step_s
        held_s = held_s if self.held_s is None else self.held_s
        excess = max(0, self.num_episodes + 1 - self.num_places)
        return step_s * (self.num_episodes + 1) + held_s * excess / self.num_places


def least_wait(views: Mapping[str, WorkerView]) -> str:
    """The name of the worker for the next episode; of equal ones the first."""
    step_s = _known_mean([view.step_s for view in views.values()])
    held_s = _known_mean([view.held_s for view in views.values()])
    return min(views, key=lambda name: views[name].expected_wait_s(step_s, held_s))


def _mean(before: float | None, reading: float) -> float:
    return reading if before is None else before + WEIGHT * (reading - before)


def _known_mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0
