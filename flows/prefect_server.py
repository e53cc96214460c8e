"""A run in Prefect's server: artifacts, warnings in the flow run's logs, and a plain error when the
server is lost.

    artifact ─▶ publish_artifact ─▶ Prefect, or a warning
    tasks.*, artifacts.*, flows.* ─ warnings ─┬─▶ Prefect: the logs of the train flow
                                              └─▶ the error stream, runs/ID/log/flow.log
    flow runs, states ─▶ no answer ─▶ PrefectLost, in one sentence

A run goes on without artifacts, but not without the states of its flow runs; Prefect's own client
retries for about a minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from httpx import HTTPError
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL

from artifacts.urls import without_secrets

logger = logging.getLogger(__name__)
SHOWN_WITHIN_S = 30.0
VALIDATION = "prefect.flows"  # Prefect's logger of parameters that a flow refuses
ROOMS = ("artifacts", "flows", "tasks")  # packages whose warnings are sent to Prefect


class PrefectLost(RuntimeError):
    """Raised when Prefect's server does not answer or does not know the run any more."""

    def __init__(self, reason: str) -> None:
        address = without_secrets(PREFECT_API_URL.value())
        super().__init__(
            f"Prefect must answer at {address} as long as the run goes on, got {reason}; see"
            " whether its server runs, and with the data base that it had, then resume the run"
        )


async def publish_artifact(artifact: Awaitable[object]) -> None:
    """Await the creation of an artifact; log a failure as a warning, since no run needs one, nor
    waits longer than SHOWN_WITHIN_S for one."""
    limit = asyncio.timeout(SHOWN_WITHIN_S)
    try:
        async with limit:
            await artifact
    except TimeoutError as error:
        told = f"no answer within {SHOWN_WITHIN_S:g} s" if limit.expired() else error
        logger.warning("artifact not shown in Prefect: %s", told)
    except Exception as error:
        logger.warning("artifact not shown in Prefect: %s: %s", type(error).__name__, error)


@contextmanager
def prefect_loss_explained() -> Iterator[None]:
    """Turn errors into PrefectLost if Prefect does not answer or does not know the run."""
    try:
        yield
    except HTTPError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PrefectLost(reason) from error
    except ObjectNotFound as error:
        raise PrefectLost("that it knows nothing of this run") from error


class FlowRunHandler(APILogHandler):
    """Log handler that sends warnings of all threads and subflows to one flow run's logs."""

    def __init__(self, flow_run_id: str) -> None:
        super().__init__(level=logging.WARNING)
        self._flow_run_id = flow_run_id

    def emit(self, record: logging.LogRecord) -> None:
        record.flow_run_id = self._flow_run_id
        super().emit(record)


class SecretFilter(logging.Filter):
    """Log filter that removes secrets from messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove secrets from the record's message; returns True, so that no record is dropped."""
        record.msg, record.args = without_secrets(record.getMessage()), ()
        return True


def hide_refused_secrets() -> None:
    """Remove secrets from Prefect's log of refused parameters, which quotes them."""
    logging.getLogger(VALIDATION).addFilter(SecretFilter(VALIDATION))


@contextmanager
def logged_in_prefect(flow_run_id: str) -> Iterator[None]:
    """Send warnings of this process to the flow run's logs during the block."""
    handler = FlowRunHandler(flow_run_id)
    loggers = [logging.getLogger(room) for room in ROOMS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
