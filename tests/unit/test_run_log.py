"""Warnings of Rollflow's loggers are sent to the flow run in Prefect, and nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.logging.handlers import set_api_log_sink

from flows.prefect_server import logged_in_prefect

RUN = "6a3f2f0e-8f0b-4a51-9d6b-0d8c3f1d2e4a"


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:  # Any: JSON
    """What Prefect's client would send."""
    lines: list[dict[str, Any]] = []
    set_api_log_sink(lines.append)
    yield lines
    set_api_log_sink(None)


def test_a_warning_in_the_block_belongs_to_the_run(sent: list[dict[str, Any]]) -> None:
    with logged_in_prefect(RUN):
        logging.getLogger("tasks.run.fleet").warning("replacing lost actors names=%s", "engine-0")
        logging.getLogger("flows.train").error("step=%d attempt=1", 2)
        logging.getLogger("artifacts.store").warning("a store")
        logging.getLogger("tasks.run.fleet").info("too much")
        logging.getLogger("distributed.worker").warning("of another house")
    logging.getLogger("tasks.run.fleet").warning("after the run")
    assert [(line["flow_run_id"], line["name"], line["message"]) for line in sent] == [
        (RUN, "tasks.run.fleet", "replacing lost actors names=engine-0"),
        (RUN, "flows.train", "step=2 attempt=1"),
        (RUN, "artifacts.store", "a store"),
    ]
