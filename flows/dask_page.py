"""Dask's own page about a run: what every worker did, as its scheduler tells it at the end.

It is a record of the run and no part of it: where the scheduler does not answer, there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, performance_report

logger = logging.getLogger(__name__)

ANSWER_S = 20.0  # within which the scheduler must tell


@contextmanager
def dask_page(client: Client, page: Path) -> Iterator[None]:
    """Keep what happens in the block in this file, however the block ends."""
    report = performance_report(filename=str(page))
    client.sync(report.__aenter__)
    try:
        yield
    finally:
        _write(client, report)


def _write(client: Client, report: performance_report) -> None:
    """A scheduler that is gone would be waited for as long as Dask goes on calling it."""
    try:
        end = (None, None, None)
        client.sync(report.__aexit__, *end, code="", callback_timeout=ANSWER_S)
    except (OSError, RuntimeError, ValueError) as error:  # TimeoutError is an OSError
        logger.warning("no page of Dask's: %s", str(error) or f"no answer within {ANSWER_S:.0f} s")
