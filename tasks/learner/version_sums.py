"""Statistics of tokens by the weight version that sampled them, kept as sums, so that those of
several rows and ranks can be added.

    versions of tokens, statistics of each ─▶ VersionSums + VersionSums ─▶ figures by lag
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from artifacts.records import VersionSpan

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor

MAX_LAG = 8  # tokens with a larger lag are counted at this one


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSums:
    """Sums over scored tokens of one weight version, or of one lag."""

    num_tokens: int = 0
    num_tokens_cut: int = 0  # of these, tokens without gradient: clipped, masked, or dropped
    importance_sum: float = 0.0  # weights learner over engine before truncation
    importance_square_sum: float = 0.0  # of the squares of these weights
    mismatch_k3_sum: float = 0.0  # k3 estimate of KL(engine || learner)

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )

    @property
    def effective_fraction(self) -> float:
        """The effective sample size over the number of tokens: (sum u)^2 / (N sum u^2), with
        importance weights u = learner over engine. 1 for equal weights; tokens that outweigh the
        rest push it towards 0, earlier than the KL shows them (M2PO). 0 for an infinite weight or
        no tokens."""
        squares = self.importance_square_sum
        if not squares or not math.isfinite(squares):
            return 0.0
        return self.importance_sum**2 / (self.num_tokens * squares)


@dataclass(frozen=True, slots=True)
class VersionSums:
    """A TokenSums for each weight version that sampled tokens."""

    of: Mapping[int, TokenSums] = field(default_factory=dict)

    def __add__(self, other: VersionSums) -> VersionSums:
        versions = sorted({*self.of, *other.of})
        none = TokenSums()
        pairs = ((self.of.get(version, none), other.of.get(version, none)) for version in versions)
        return VersionSums(dict(zip(versions, (one + two for one, two in pairs), strict=True)))

    def by_lag(self, version: int) -> dict[int, TokenSums]:
        """The sums by lag: versions from the one that sampled a token to `version`."""
        sums: dict[int, TokenSums] = {}
        for sampled_by, tokens in self.of.items():
            lag = min(MAX_LAG, version - sampled_by)
            sums[lag] = sums.get(lag, TokenSums()) + tokens
        return dict(sorted(sums.items()))


NUM_SUMS = len(fields(TokenSums))  # numbers that are summed for each version


def version_places(versions: Iterable[VersionSpan]) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """The versions of a row's tokens, ascending, and for each token the place of its version among
    them, (tokens,); `versions` are theirs in order."""
    spans = tuple(versions)
    found, places = np.unique([span.version for span in spans], return_inverse=True)
    counts = [span.num_tokens for span in spans]
    return tuple(found.tolist()), np.repeat(places, np.array(counts, dtype=np.int64))


def sums_by_version(
    places: Tensor, num_versions: int, is_cut: Tensor, importance: Tensor, mismatch_k3: Tensor
) -> Tensor:
    """(versions, NUM_SUMS) fp64 where the tokens are: the sums of a row's tokens, which the tensors
    (tokens,) describe, in the order of the fields of TokenSums."""
    import torch

    from tasks.learner.head import add_rows

    weights = importance.double()
    columns = [torch.ones_like(weights), is_cut, weights, weights.square(), mismatch_k3]
    sums = weights.new_zeros(num_versions, len(columns))
    return add_rows(sums, places, torch.stack([values.double() for values in columns], 1))


def read_sums(versions: Sequence[int], numbers: Sequence[float]) -> VersionSums:
    """The sums of a row from the elements of `sums_by_version`."""
    of: dict[int, TokenSums] = {}
    for place, version in enumerate(versions):
        num_tokens, num_cut, importance_sum, squares, mismatch = numbers[NUM_SUMS * place :][
            :NUM_SUMS
        ]
        of[version] = TokenSums(
            num_tokens=int(num_tokens),
            num_tokens_cut=int(num_cut),
            importance_sum=importance_sum,
            importance_square_sum=squares,
            mismatch_k3_sum=mismatch,
        )
    return VersionSums(of)


def figures_by_lag(
    sums: VersionSums, version: int, *, may_drop_gradients: bool
) -> dict[str, float]:
    """The metrics of tokens by their lag behind this version, by name, ready for tracking. The
    share of tokens without gradient is there only if something clips or masks."""
    by_lag = sums.by_lag(version)
    total = sum((tokens.num_tokens for tokens in by_lag.values()), 0)
    figures: dict[str, float] = {}
    for lag, tokens in by_lag.items():
        count = tokens.num_tokens
        figures[f"lag/tokens_fraction_at_{lag}"] = count / total
        figures[f"lag/mismatch_k3_at_{lag}"] = tokens.mismatch_k3_sum / count
        figures[f"lag/effective_sample_fraction_at_{lag}"] = tokens.effective_fraction
        if may_drop_gradients:
            figures[f"lag/cut_fraction_at_{lag}"] = tokens.num_tokens_cut / count
    return figures
