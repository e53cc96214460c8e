"""How many tokens a learner rank computes for the groups that it is given.

    drawn workloads      every response, and the prompt of a part once
    recorded responses   the nodes of their prefix tree: what sequences of a call begin with alike,
                         examples above all questions or the first line of siblings, once
                         (`tasks.learner.packing`)

Leaves out that a call with more tokens than a row computes shared ones once a row, and histories
that a chat template wrote anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tasks.learner.dealing import GroupPart
from tasks.learner.packing import shared_prefix
from tasks.learner.streaming import tokens_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientWork:
    """What accepted groups cost a rank."""

    flat_costs: bool  # whether groups without a gradient are computed, too: see `balance`
    num_tokens: Callable[[Sequence[GroupPart]], int]  # that the parts of a call are


def every_token(parts: Sequence[GroupPart]) -> int:
    """Each response once, and the prompt of a part once."""
    return sum(map(tokens_of, parts))


EVERY_TOKEN = GradientWork(flat_costs=True, num_tokens=every_token)


class PrefixTree:
    """Named sequences in the order of their tokens: then the tokens that two of them begin with
    alike are the least that neighbours between them share."""

    def __init__(self, sequences: Mapping[str, tuple[int, ...]]) -> None:
        order = sorted(sequences, key=sequences.__getitem__)
        ordered = [sequences[name] for name in order]
        shared = [shared_prefix(before, after) for before, after in pairwise(ordered)]
        self.lengths = {name: len(sequence) for name, sequence in sequences.items()}
        self._ranks = {name: rank for rank, name in enumerate(order)}
        self._shared = np.array([0, *shared, 0])  # of each and the one before it

    def num_nodes(self, taken: Iterable[tuple[str, int]]) -> int:
        """Nodes of the tree of these sequences, each a name and how many of its tokens are taken.
        One that is taken twice stands for two that are as alike as it and its likest neighbour."""
        ordered = sorted((self._ranks[name], length) for name, length in taken)
        nodes = sum(length for _, length in ordered)
        for (before, length), (after, other) in pairwise(ordered):
            between = self._shared[before + 1 : after + 1]
            shared = between.min() if len(between) else self._shared[after : after + 2].max()
            nodes -= min(int(shared), length, other)
        return nodes
