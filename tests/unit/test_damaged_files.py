"""A file that a resume reads and that is damaged, as by a copy that was broken off, is named:
"Expecting value: line 1 column 1" says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from artifacts import layout
from artifacts.journal import Journal
from artifacts.judgements import kept_judgements
from artifacts.store import Store
from flows.recovery import partial_round
from tasks.learner.collective import read_moments
from tasks.learner.split import read_split
from tasks.rounds.report import read_round

READERS: dict[str, Callable[[Store], object]] = {
    layout.step_file(layout.PLANS, 2): lambda store: partial_round(store, 2, 9, ()),
    layout.step_file(layout.ROUNDS, 2): lambda store: read_round(store, 2),
    layout.step_file(layout.SPLITS, 2): lambda store: read_split(store, 2),
    layout.step_file(layout.MOMENTS, 2): lambda store: read_moments(store, 2),
    layout.part_file(layout.JOURNAL, 2, 0): lambda store: Journal(store).read(2),
    layout.table_file("responses", 2): lambda store: Journal(store).read(2),
    layout.table_file("groups", 2): lambda store: Journal(store).read_groups(2, ()),
    layout.table_file("spans", 2): lambda store: Journal(store).read_spans(2),
    layout.part_file(layout.JUDGEMENTS, 2, 0): lambda store: kept_judgements(store, 2),
}


@pytest.mark.parametrize("data", [b"", b'{"schema_version": 1, "be', b"[1]", b"PAR1 ... PAR1"])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named(name: str, data: bytes) -> None:
    store = Store.open("memory://damaged").child("run")
    store.delete("")
    store.write(name, data)
    with pytest.raises(
        ValueError, match=rf"run/{name} \({len(data)} bytes\) must be whole .*; restore it"
    ):
        READERS[name](store)
