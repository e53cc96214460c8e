"""Staleness: how far generation may be ahead of training, which step may train a group at the
latest, and how old the weights were that sampled a step's tokens. Pure.

With B groups a step, an async ratio of α and a largest lag of L >= α versions, at weight version v
(which step v made; step s trains version s - 1):

    a group may be dispatched   while fewer than floor((α + v + 1)·B) are
    its deadline is             step v + 1 + L

As dispatched count all trained and undecided groups, and the slots that a step could not fill. The
groups of deadline k or earlier were dispatched at versions up to k - 1 - L, when at most
floor((α + k - L)·B) <= k·B were: no more than steps 1 to k train. So a step may take a group early
only if groups with nearer deadlines do not need its slot (`can_all_be_trained`); then no step ever
has more than B groups that are due, and no token lags more than L versions behind the weights that
it trains. The mean lag is at most α, whatever L: by Little's law it is the number of dispatched
groups that are not trained, divided by B. (L - α)·B of a step's B slots are reserved for no group:
the groups that are complete first fill them.
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
    """When a group was dispatched, and which of its responses will be trained."""

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
    # dispatches of the round's leading prompts, which the round before left undecided
    carried: tuple[Dispatched, ...] = ()

    def limit(self, version: int) -> int:
        """The number of groups that may be dispatched in all at this version of every engine."""
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
        """L: the most weight versions by which a token may lag."""
        return math.ceil(self.async_ratio) + self.extra_lag


def can_all_be_trained(
    num_due: Mapping[int, int], step: int, num_free: int, prompts_per_step: int
) -> bool:
    """True if all groups can be trained by their deadlines, when this step has num_free slots left
    and every later one prompts_per_step. num_due: number of groups by deadline."""
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
    """The lag of a response in weight versions: from the version of its oldest sampled token to the
    version that the step trains. None without a sampled token."""
    versions = [span.version for span in sampled_versions(response)]
    return step - 1 - min(versions) if versions else None
