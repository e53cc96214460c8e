"""Many rows in little memory: a mapped file on disk, of which a row is read when it is asked for.

    rows --add--> one JSON text after the other in a temporary file --mapped--> RowTable[i] -> Row

The file has no name, so it ends with its process.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import overload

import numpy as np
from numpy.typing import NDArray

from artifacts.datasets.rows import Message, Row

_LONE_SURROGATES = "surrogatepass"  # JSON may hold them; who tokenises the row says what they are


class RowTable(Sequence[Row]):
    """Rows of a mapped file, in an order of its own."""

    def __init__(
        self,
        texts: mmap.mmap,
        ends: NDArray[np.int64],
        order: NDArray[np.int64],
        left_out: Mapping[str, int],
    ) -> None:
        """`ends`: where each of the file's rows ends; `order`: the numbers of the table's rows;
        `left_out`: rows of the source that the file lacks, by reason."""
        self._texts, self._ends, self._order = texts, ends, order
        self.left_out = left_out

    def taken(self, order: NDArray[np.int64]) -> RowTable:
        """The file's rows of these numbers, in this order."""
        return RowTable(self._texts, self._ends, order, self.left_out)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> RowTable: ...
    def __getitem__(self, index: int | slice) -> Row | RowTable:
        if isinstance(index, slice):
            return self.taken(self._order[index])
        number = int(self._order[index])
        start = int(self._ends[number - 1]) if number else 0
        return _row(self._texts[start : int(self._ends[number])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTable) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


class RowTableWriter:
    """Rows on their way into a table."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="rollflow-rows-")  # noqa: SIM115  # see finish
        self._ends = array("q")
        self.left_out = Counter[str]()  # rows that are not added, by reason

    def add(self, row: Row) -> None:
        """Write one more row."""
        turns = [astuple(turn) for turn in row.messages]
        text = json.dumps([row.domain, turns, row.gold, row.preamble], ensure_ascii=False)
        size = self._file.write(text.encode("utf-8", _LONE_SURROGATES))
        self._ends.append(size + (self._ends[-1] if self._ends else 0))

    def finish(self) -> RowTable:
        """All rows, at least one, in the order in which they came."""
        with self._file:
            self._file.flush()
            texts = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.frombuffer(self._ends, np.int64)
        return RowTable(texts, ends, np.arange(len(ends)), self.left_out)


def _row(text: bytes) -> Row:
    domain, turns, gold, preamble = json.loads(text.decode("utf-8", _LONE_SURROGATES))
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return Row(
        domain=domain,
        messages=messages,
        gold=gold,
        text=messages[-1].content,
        preamble=preamble,
    )
