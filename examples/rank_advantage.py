"""An advantage: the share of its group that a response beats, less the share that beats it.

    rollflow check advantage examples/rank_advantage.py:RankAdvantage

An advantage turns the rewards of one group into a number each. It knows no other group, so that a
group can be trained while others are still being generated (invariant 4, docs/architecture.md).
"""

from __future__ import annotations


class RankAdvantage:
    """From -1, the worst alone, to 1, the best alone: an outlier counts no more than its rank."""

    zero_sum = True  # the check holds it to that

    def of(self, rewards: list[float]) -> list[float]:
        others = len(rewards) - 1
        return [
            sum((reward > other) - (reward < other) for other in rewards) / others
            for reward in rewards
        ]
