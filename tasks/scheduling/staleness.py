"""Staleness: how far generation may be ahead of training, which step must train what at the latest,
and how old the weights were that sampled what a step trains. Pure.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from artifacts.records import Generated, Group, sampled_versions

ROUNDING = 1e-9  # 2.3 * 10 groups are 23, not 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """The dispatch of a group."""

    version: int  # the newest weight version that every engine had then
    is_returned: bool = False  # whether it had been parked before
    # the responses that it will be trained on, once it is complete
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The bound on the groups that a round of an asynchronous run may dispatch."""

    async_ratio: float  # α
    extra_lag: int = 0  # L - ceil(α)
    prompts_per_step: int  # B
    num_steps: int  # planned ones; nothing is dispatched that no step could train
    num_before: int  # dispatched groups when the round was planned, the carried ones included
    version: int  # the newest that every engine had then
    is_bounded: bool = True  # whether tokens that lag more than L versions are not trained
    # dispatches of the round's first prompts, those that the round before left undecided
    carried: tuple[Dispatched, ...] = ()

    def limit(self, version: int) -> int:
        """The number of groups that may be dispatched while every engine has this version."""
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
    """True if groups, counted by deadline, can all be trained in time when this step has num_free
    slots left and every later one prompts_per_step."""
    num_so_far = 0
    for deadline, count in sorted(num_due.items()):
        num_so_far += count
        if num_so_far > num_free + max(0, deadline - step) * prompts_per_step:
            return False
    return True


def staleness_figures(step: int, groups: Iterable[Group], *, recomputes: bool) -> dict[str, float]:
    """The staleness metrics of the groups that a step trains; a response counts by its oldest
    sampled token. recomputes: whether engines compute the caches of running responses again when
    newer weights are loaded."""
    responses = [response.generated for group in groups for response in group.responses]
    lags = [lag for response in responses if (lag := lag_of(response, step)) is not None]
    num_mixed = sum(len(sampled_versions(response)) > 1 for response in responses)
    recomputed_tokens = sum(  # of all spans before the last, once for each load after them
        sum(accumulate(span.num_tokens for span in sampled_versions(response)[:-1]))
        for response in responses
    )
    return {
        "lag/mean_versions": sum(lags) / max(1, len(lags)),
        "lag/max_versions": float(max(lags, default=0)),
        "lag/mixed_fraction": num_mixed / max(1, len(responses)),
        "lag/recomputed_tokens": float(recomputed_tokens * recomputes),
    }


def lag_of(response: Generated, step: int) -> int | None:
    """Weight versions by which the response's oldest sampled token is behind those that the step
    trains; None without a sampled token."""
    versions = [span.version for span in sampled_versions(response)]
    return step - 1 - min(versions) if versions else None
