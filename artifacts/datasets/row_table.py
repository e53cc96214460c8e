"""Stores many rows in little memory, and splits them into rows to train on and held-out rows.

    rows --add--> one JSON text after the other in a temporary file --mapped--> RowTable[i] -> Row

Rows with equal questions (`Row.identity`) stay on one side. A row's random place is a hash of the
seed and the row's text; a question's place is that of its first row. Held-out rows are sorted by
place, so that the first rows, which an evaluation asks, are a fair sample of all.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from artifacts.datasets.rows import Dataset, Message, Row

DIGESTED = 64  # rows of which a file's digest is made
_LONE_SURROGATES = "surrogatepass"  # JSON may hold them; the tokenizer decides about them


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTable(Sequence[Row]):
    """A sequence of rows that are read from a memory-mapped file, in any order."""

    texts: mmap.mmap  # the file
    ends: NDArray[np.int64]  # byte offset at which each row of the file ends
    order: NDArray[np.int64]  # the file's row number of each row of the table
    left_out: Mapping[str, int]  # number of source rows not in the file, by reason

    def taken(self, order: NDArray[np.int64]) -> RowTable:
        """A table of the file's rows with these row numbers, in this order."""
        return replace(self, order=order)

    @property
    def first_rows_sha256(self) -> str:
        """SHA-256 of the texts of the file's first `DIGESTED` rows, or of all if it has fewer."""
        end = int(self.ends[min(DIGESTED, len(self.ends)) - 1])
        return hashlib.sha256(self.texts[:end]).hexdigest()

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> RowTable: ...
    def __getitem__(self, index: int | slice) -> Row | RowTable:
        if isinstance(index, slice):
            return self.taken(self.order[index])
        number = int(self.order[index])
        start = int(self.ends[number - 1]) if number else 0
        text = self.texts[start : int(self.ends[number])].decode("utf-8", _LONE_SURROGATES)
        domain, turns, gold, preamble, *shown = json.loads(text)
        messages = tuple(Message(role=role, content=content) for role, content in turns)
        asked = messages[-1].content
        pictures = tuple(shown[0]) if shown else ()
        return Row(
            domain=domain,
            messages=messages,
            gold=gold,
            text=asked,
            preamble=preamble,
            pictures=pictures,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTable) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


class RowTableWriter:
    """Writes rows into a new table."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="rollflow-rows-")  # noqa: SIM115  # see finish
        self._ends = array("q")
        self.left_out = Counter[str]()  # rows that are not added, by reason

    def add(self, row: Row) -> None:
        """Append a row to the file."""
        turns = [astuple(turn) for turn in row.messages]
        shown = [row.pictures] if row.pictures else []
        text = json.dumps([row.domain, turns, row.gold, row.preamble, *shown], ensure_ascii=False)
        size = self._file.write(text.encode("utf-8", _LONE_SURROGATES))
        self._ends.append(size + (self._ends[-1] if self._ends else 0))

    def finish(self) -> RowTable:
        """Close the file and return the table of all added rows in their order. At least one row
        must have been added."""
        with self._file:
            self._file.flush()
            texts = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.frombuffer(self._ends, np.int64)
        order = np.arange(len(ends))
        return RowTable(texts=texts, ends=ends, order=order, left_out=self.left_out)


def split(
    name: str, table: RowTable, heldout: RowTable | None, fraction: float, seed: int
) -> Dataset:
    """Make a dataset of the rows of `table` to train on, and held-out rows: those of `heldout`, or
    else of this fraction of the table's distinct questions, at least one if the fraction is not 0,
    and never all. Raises ValueError if none are left to train on."""
    questions, places = _hashed(table, seed)
    left_out = Counter(table.left_out)
    if heldout is None:
        distinct, first = np.unique(questions, return_index=True)
        wanted = round(fraction * len(distinct)) or int(fraction > 0)
        num_heldout = min(len(distinct) - 1, wanted)
        drawn = distinct[np.lexsort((distinct, places[first]))[:num_heldout]]
        is_heldout = np.isin(questions, drawn)
        numbers = np.flatnonzero(is_heldout)
        asked = table.taken(numbers[np.lexsort((questions[numbers], places[numbers]))])
    else:
        heldout_questions, heldout_places = _hashed(heldout, seed)
        is_heldout = np.isin(questions, heldout_questions)
        asked = heldout.taken(np.lexsort((heldout_questions, heldout_places)))
        left_out.update(heldout.left_out)
        left_out.update(held_out=int(is_heldout.sum()))
        if is_heldout.all():
            raise ValueError(
                "the rows to train on must hold a question that is not held out, got none; name"
                " another split or file"
            )
    rows = table.taken(np.flatnonzero(~is_heldout))
    return Dataset(name=name, rows=rows, heldout=asked, left_out=+left_out)


def _hashed(table: RowTable, seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The hash of every row's question, and every row's place (a hash, too)."""
    hashes = array("Q")
    for row in table:
        hashes.extend((_hash(row.identity), _hash(f"{seed}/{row.text}")))
    both = np.frombuffer(hashes, np.uint64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _hash(text: str) -> int:
    words = text.encode("utf-8", "surrogatepass")  # JSON may hold lone ones
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
