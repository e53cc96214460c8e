"""Bounds on the number of a short round's groups from each domain, so that a domain of short
answers cannot crowd out one of long answers.

    launched: 6 of code, 2 stories, 1 letters, 1 sum; to accept: 8   exact shares 4.8, 1.6, 0.8, 0.8
    -> at least 4, 1, 0, 0 and at most 5, 2, 1, 1: who finishes first decides which shares are
    rounded up

Every domain gets its share of the launched mix, rounded; fixing beforehand which share is rounded
up would make a small round wait for its slowest domain. Deferred prompts are trained in a long
round, so that the mix over both kinds of rounds is that of the dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tasks.scheduling.events import PromptRef, Quota


def domain_quotas(prompts: Sequence[PromptRef], num_accepted: int) -> tuple[Quota, ...]:
    """Each domain's share of the accepted groups, rounded down and up; sorted by name."""
    launched = Counter(ref.domain for ref in prompts)
    shares = {
        domain: divmod(count * num_accepted, len(prompts))
        for domain, count in sorted(launched.items())
    }
    return tuple(
        Quota(domain=domain, least=whole, most=whole + (rest > 0))
        for domain, (whole, rest) in shares.items()
    )


class RemainingQuotas:
    """The slots that a round still has to fill, by domain. The launched prompts can always fill
    them, unless prompts are given up."""

    def __init__(self, quotas: Sequence[Quota], num_groups: int) -> None:
        self._reserved = {quota.domain: quota.least for quota in quotas}
        self._allowed = {
            quota.domain: quota.most - quota.least for quota in quotas
        }  # beyond what is reserved
        self._shared = num_groups - sum(self._reserved.values())  # for those that finish first
        assert 0 <= self._shared <= sum(self._allowed.values()), (
            "quotas enclose the groups of the round"
        )

    @property
    def num_free(self) -> int:
        """Number of groups that the round still lacks."""
        return self._shared + sum(self._reserved.values())

    @property
    def full(self) -> frozenset[str]:
        """Domains that have no free slot."""
        return frozenset(domain for domain in self._reserved if not self.is_free(domain))

    def is_free(self, domain: str) -> bool:
        """True if there is a free slot for a group of this domain."""
        return self._reserved[domain] > 0 or (self._allowed[domain] > 0 and self._shared > 0)

    def take(self, domain: str) -> None:
        """Fill a slot with an accepted group of this domain."""
        assert self.is_free(domain), "a group is accepted into a free slot"
        if self._reserved[domain]:
            self._reserved[domain] -= 1
        else:
            self._allowed[domain] -= 1
            self._shared -= 1

    def give_up(self, candidates: Counter[str]) -> None:
        """Adjust the slots after a prompt was given up: those that a domain can no longer fill go
        to domains that can, or are lost. candidates: number of undecided prompts by domain."""
        for domain, slots in self._reserved.items():
            self._reserved[domain] = min(slots, candidates[domain])
            self._shared += slots - self._reserved[domain]
        beyond = {domain: candidates[domain] - slots for domain, slots in self._reserved.items()}
        lacking = self._shared - sum(
            min(self._allowed[domain], beyond[domain]) for domain in beyond
        )
        for domain, num in beyond.items():
            more = max(0, min(lacking, num - self._allowed[domain]))
            self._allowed[domain] += more
            lacking -= more
        self._shared -= max(0, lacking)
