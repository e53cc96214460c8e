"""The two sides of a table: rows to train on and rows held out, which share no question.

Equal questions (`Row.identity`) are one, and stay together. A row's place is drawn by a hash of the
seed and its text, a question's is that of its first row; nothing but hashes is kept in memory.
Held-out rows come in the order of their places: the first of them, which an evaluation asks, are a
fair sample of all.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from artifacts.datasets.row_table import RowTable
from artifacts.datasets.rows import Dataset


class Sides:
    """Divides a table."""

    def __init__(self, table: RowTable, seed: int) -> None:
        self._table, self._seed = table, seed
        self._questions, self._places = self._hashed(table)

    def by_fraction(self, name: str, fraction: float) -> Dataset:
        """A share of the distinct questions is held out: at least one question if the share is not
        0, and never all."""
        distinct, first = np.unique(self._questions, return_index=True)
        wanted = round(fraction * len(distinct)) or int(fraction > 0)
        num_heldout = min(len(distinct) - 1, wanted)
        drawn = distinct[np.lexsort((distinct, self._places[first]))[:num_heldout]]
        is_heldout = np.isin(self._questions, drawn)
        heldout = np.flatnonzero(is_heldout)
        order = np.lexsort((self._questions[heldout], self._places[heldout]))
        return Dataset(
            name=name,
            rows=self._table.taken(np.flatnonzero(~is_heldout)),
            heldout=self._table.taken(heldout[order]),
            left_out=self._table.left_out,
        )

    def beside(self, name: str, heldout: RowTable) -> Dataset:
        """All rows of another table are held out; rows with a question of those are not trained."""
        questions, places = self._hashed(heldout)
        kept = np.flatnonzero(~np.isin(self._questions, questions))
        if not len(kept):
            raise ValueError(
                "the rows to train on must hold a question that is not held out, got none; name"
                " another split or file"
            )
        left_out = Counter(self._table.left_out)
        left_out.update(heldout.left_out)
        left_out.update(held_out=len(self._table) - len(kept))
        return Dataset(
            name=name,
            rows=self._table.taken(kept),
            heldout=heldout.taken(np.lexsort((questions, places))),
            left_out=+left_out,
        )

    def _hashed(self, table: RowTable) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Of every row its question and its place."""
        hashes = array("Q")
        for row in table:
            hashes.extend((_hash(row.identity), _hash(f"{self._seed}/{row.text}")))
        both = np.frombuffer(hashes, np.uint64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def _hash(text: str) -> int:
    words = text.encode("utf-8", "surrogatepass")  # JSON may hold lone ones
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
