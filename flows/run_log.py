"""Warnings of Rollflow's own loggers, told in Prefect as well: whoever looks for what happened to a
run at night finds them among the logs of its flow run.

    tasks.*, artifacts.*, flows.* ─ warnings ─┬─▶ Prefect: the logs of the train flow
                                              └─▶ the error stream, runs/ID/log/flow.log

Leaves out the loggers of workers: what they say is in the logs of their processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.logging.handlers import APILogHandler

from artifacts.urls import without_secrets

VALIDATION = "prefect.flows"  # Prefect's logger of parameters that a flow refuses
ROOMS = ("artifacts", "flows", "tasks")  # the packages whose loggers speak of runs


class FlowRunHandler(APILogHandler):
    """Sends records to one flow run, from whatever thread or subflow they come."""

    def __init__(self, flow_run_id: str) -> None:
        super().__init__(level=logging.WARNING)
        self._flow_run_id = flow_run_id

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, with the run that it belongs to."""
        record.flow_run_id = self._flow_run_id
        super().emit(record)


class WithoutSecrets(logging.Filter):
    """Takes secrets out of what a logger says."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_secrets(record.getMessage()), ()
        return True


def hide_refused_secrets() -> None:
    """Have Prefect log no secret of a deployment whose parameters a flow refuses: it logs them as
    they were given."""
    logging.getLogger(VALIDATION).addFilter(WithoutSecrets(VALIDATION))


@contextmanager
def logged_in_prefect(flow_run_id: str) -> Iterator[None]:
    """Send warnings of this process to the logs of the flow run, for the length of the block."""
    handler = FlowRunHandler(flow_run_id)
    loggers = [logging.getLogger(room) for room in ROOMS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
