"""How far generation may be ahead of training, and which step must train what at the latest. Pure.

With B groups a step, an async ratio of α and a largest lag of L >= α versions, at weight version v
(which step v made; step s trains version s - 1):

    a group may be dispatched   while fewer than floor((α + v + 1)·B) are
    its deadline is             step v + 1 + L

Dispatched are the groups that were trained, slots of steps that could not be filled, and whatever
is undecided; a group that is filtered, dropped or parked counts no more. The groups of deadline k
or earlier were dispatched at versions up to k - 1 - L, when at most
floor((α + k - L)·B) <= k·B were: no more than steps 1 to k train. So a step that takes no group
early whose slot one of a nearer deadline will need (`can_all_be_trained`) never has more than B
that are due, and no token lags more than L versions behind the weights that it trains. The mean lag
is α at most, whatever L: it is the groups that are dispatched and not trained, by B (Little's law).
Of B slots, (L - α)·B are nobody's yet when a step begins: it may fill them with what is complete
first. That is the freedom that tail batching has without a bound; at L = α there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ROUNDING = 1e-9  # 2.3 * 10 groups are 23, not 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """How a group was dispatched."""

    version: int  # the newest that every engine had then
    is_returned: bool = False  # whether it had been parked before
    # the responses that it will be trained on, once it is complete
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What of an asynchronous run bounds the groups that a round may dispatch."""

    async_ratio: float  # α
    extra_lag: int = 0  # L - ceil(α)
    prompts_per_step: int  # B
    num_steps: int  # planned ones; nothing is dispatched that no step could train
    num_before: int  # dispatched groups when the round was planned, the carried ones included
    version: int  # the newest that every engine had then
    is_bounded: bool = True  # whether a token that lags more than L versions may not be trained
    # how the first prompts of the round were dispatched: those that the round before left undecided
    carried: tuple[Dispatched, ...] = ()

    def limit(self, version: int) -> int:
        """How many groups may be dispatched while every engine has this version."""
        ahead = math.floor((self.async_ratio + version + 1) * self.prompts_per_step + ROUNDING)
        return min(ahead, self.num_steps * self.prompts_per_step)

    def versions(self, step: int) -> range:
        """The weight versions whose tokens this step may train."""
        oldest = step - 1 - self.max_lag if self.is_bounded else 0
        return range(max(0, oldest), step)

    def deadline(self, version: int) -> int:
        """The last step that may train a group which was dispatched at this version."""
        return version + 1 + self.max_lag

    @property
    def max_lag(self) -> int:
        """Weight versions by which a token lags at most, L."""
        return math.ceil(self.async_ratio) + self.extra_lag


def can_all_be_trained(
    num_due: Mapping[int, int], step: int, num_free: int, prompts_per_step: int
) -> bool:
    """Whether groups, counted by deadline, can all be trained in time when this step has num_free
    slots left and every later one prompts_per_step."""
    num_so_far = 0
    for deadline, count in sorted(num_due.items()):
        num_so_far += count
        if num_so_far > num_free + max(0, deadline - step) * prompts_per_step:
            return False
    return True
