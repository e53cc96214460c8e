"""The two sides of a table: rows to train on and rows held out, which share no question.

A question's place is drawn by a hash of the seed and its text. So equal questions stay together,
and nothing but hashes is kept in memory. Held-out rows come in the order of their hashes: the first
of them, which an evaluation asks, are a fair sample of all.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from artifacts.datasets.row_table import RowTable
from artifacts.datasets.rows import Dataset


class Sides:
    """Divides a table."""

    def __init__(self, table: RowTable, seed: int) -> None:
        self._table, self._seed = table, seed
        self._hashes = self._hashed(table)

    def by_fraction(self, name: str, fraction: float) -> Dataset:
        """A share of the distinct questions is held out: at least one question if the share is not
        0, and never all."""
        distinct = np.unique(self._hashes)
        wanted = round(fraction * len(distinct)) or int(fraction > 0)
        num_heldout = min(len(distinct) - 1, wanted)
        return self._dataset(name, np.isin(self._hashes, distinct[:num_heldout]))

    def beside(self, name: str, heldout: RowTable) -> Dataset:
        """All rows of another table are held out; rows with a question of those are not trained."""
        hashes = self._hashed(heldout)
        kept = np.flatnonzero(~np.isin(self._hashes, hashes))
        if not len(kept):
            raise ValueError(
                "the rows to train on must hold a question that is not held out, got none; name"
                " another split or file"
            )
        return Dataset(
            name=name,
            rows=self._table.taken(kept),
            heldout=heldout.taken(np.argsort(hashes, kind="stable")),
        )

    def _dataset(self, name: str, is_heldout: NDArray[np.bool_]) -> Dataset:
        heldout = np.flatnonzero(is_heldout)
        order = np.argsort(self._hashes[heldout], kind="stable")
        return Dataset(
            name=name,
            rows=self._table.taken(np.flatnonzero(~is_heldout)),
            heldout=self._table.taken(heldout[order]),
        )

    def _hashed(self, table: RowTable) -> NDArray[np.uint64]:
        return np.fromiter((self._hash(row.text) for row in table), np.uint64, len(table))

    def _hash(self, text: str) -> int:
        words = f"{self._seed}/{text}".encode("utf-8", "surrogatepass")  # JSON may hold lone ones
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
