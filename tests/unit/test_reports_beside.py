"""Reports of a committed step are written beside the next one, and at every end of the run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from plan_factories import make_report
from report_factories import make_commit, make_run

from artifacts import layout
from artifacts.reports.figures import read_figures
from artifacts.store import Store
from flows import reporter
from flows.reporter import RunReporter
from tasks.elastic.worker_history import WorkerHistory

SPANS = layout.table_file("spans", 1)


class HeldTables:
    """A Prefect that takes tables only when it is let go on."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.taken: list[int] = []  # steps of the last rows

    async def __call__(self, *, table: list[dict[str, Any]], **_: object) -> None:  # Any: cells
        await self.may_answer.wait()
        self.taken.append(table[-1]["step"])


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> HeldTables:
    async def made(*_: object, **__: object) -> None:
        pass

    held = HeldTables()
    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "get_run_logger", lambda: logging.getLogger("a-flow-run"))
    monkeypatch.setattr(reporter, "acreate_markdown_artifact", made)
    monkeypatch.setattr(reporter, "acreate_table_artifact", held)
    return held


def teller_of(root: Path) -> RunReporter:
    run = make_run(Store.open(str(root)))
    return RunReporter(run, WorkerHistory(run.store, tuple))


async def test_a_step_is_reported_beside_the_next_and_one_step_at_a_time(
    tables: HeldTables, tmp_path: Path
) -> None:
    async with teller_of(tmp_path) as teller:
        await teller.report_step(make_report(()), make_commit(1))
        assert teller.last == make_commit(1), "what the next step needs is there at once"
        assert tables.taken == []
        second = asyncio.create_task(teller.report_step(make_report(()), make_commit(2)))
        await asyncio.sleep(0)
        assert teller.last == make_commit(1), "the second waits for the first"
        tables.may_answer.set()
        await second
        assert tables.taken == [1]
    assert tables.taken == [1, 2]


@pytest.mark.parametrize("ending", ["success", "failure", "cancellation"])
async def test_every_end_of_a_run_waits_for_the_reports_that_have_begun(
    tables: HeldTables, tmp_path: Path, ending: str
) -> None:
    async def run() -> None:
        async with teller_of(tmp_path) as teller:
            await teller.report_step(make_report(()), make_commit(1))
            asyncio.get_running_loop().call_later(0.05, tables.may_answer.set)
            if ending == "failure":
                raise RuntimeError("a learner was lost")
            if ending == "cancellation":
                await asyncio.Event().wait()

    running = asyncio.create_task(run())
    if ending == "cancellation":
        asyncio.get_running_loop().call_later(0.01, running.cancel)
    (error,) = await asyncio.gather(running, return_exceptions=True)
    expected = {"failure": RuntimeError, "cancellation": asyncio.CancelledError}
    assert type(error) is expected.get(ending, type(None))
    store = Store.open(str(tmp_path)).child("run")
    figures = read_figures(store)
    assert tables.taken == [1]
    assert store.exists(SPANS)
    assert figures is not None
    assert figures.steps == 1


async def test_a_report_that_cannot_be_written_ends_the_run_after_the_step(
    tables: HeldTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    tables.may_answer.set()
    monkeypatch.setattr(reporter, "spans_to_parquet", full)

    async def run(root: Path, failure: str) -> None:
        async with teller_of(root) as teller:
            await teller.report_step(make_report(()), make_commit(1))
            if failure:
                raise RuntimeError(failure)

    with pytest.raises(OSError, match="disk full"):
        await run(tmp_path / "ended", "")
    with pytest.raises(RuntimeError, match="the cause"):
        await run(tmp_path / "failed", "the cause")
