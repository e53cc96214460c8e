"""Prefect away: pictures are left out, and what cannot do without it says whom it waited for."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from plan_factories import make_report
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from report_factories import make_commit, make_run

from artifacts.store import Store
from flows import prefect_server, reporter
from flows.prefect_server import PrefectLost, prefect_loss_explained
from flows.reporter import TABLE_STEPS, RunReporter
from tasks.elastic.worker_history import WorkerHistory


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run whose store is remote tracks into the directory that it is started in."""
    monkeypatch.chdir(tmp_path)


def teller_of(root: str, monkeypatch: pytest.MonkeyPatch, table: Any) -> RunReporter:
    """Tells of a run without MLflow; `table` is what Prefect does with a table."""  # Any: a stub
    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "get_run_logger", lambda: logging.getLogger("a-flow-run"))
    monkeypatch.setattr(reporter, "acreate_table_artifact", table)
    run = make_run(Store.open(f"memory://{root}"))
    return RunReporter(run, WorkerHistory(run.store, tuple))


async def test_a_table_that_prefect_does_not_take_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(**_: object) -> None:
        raise httpx.ConnectError("All connection attempts failed")

    teller = teller_of("no-prefect", monkeypatch, refuse)
    await teller.report_step(make_report(()), make_commit(1))
    await teller.caught_up()
    assert "not shown in Prefect: ConnectError: All connection" in caplog.text


async def test_a_table_that_prefect_does_not_answer_for_holds_no_run_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(**_: object) -> None:
        await asyncio.sleep(600.0)

    monkeypatch.setattr(prefect_server, "SHOWN_WITHIN_S", 0.01)
    teller = teller_of("silent-prefect", monkeypatch, hang)
    await teller.report_step(make_report(()), make_commit(1))
    await teller.caught_up()
    assert "not shown in Prefect: no answer within 0.01 s" in caplog.text


async def test_tables_of_steps_do_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect keeps each of them."""
    tables: list[list[dict[str, Any]]] = []  # Any: cells

    async def keep(*, table: list[dict[str, Any]], **_: object) -> None:
        tables.append(table)

    teller = teller_of("tables", monkeypatch, keep)
    for step in range(1, TABLE_STEPS + 3):
        await teller.report_step(make_report(()), make_commit(step))
    await teller.caught_up()
    assert [row["step"] for row in tables[1]] == [1, 2]
    assert [row["step"] for row in tables[-1]] == list(range(3, TABLE_STEPS + 3))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ConnectError("All connection attempts failed"), "All connection attempts failed"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (ObjectNotFound(ValueError("404")), "that it knows nothing of this run"),
    ],
)
def test_a_run_without_prefect_says_who_does_not_answer(error: Exception, said: str) -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://far:4200/api"}),
        pytest.raises(
            PrefectLost, match=rf"must answer at http://far:4200/api .* got {said}; .* resume"
        ),
        prefect_loss_explained(),
    ):
        raise error
