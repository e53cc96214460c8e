"""What a run shows in Prefect, and what it is when Prefect does not answer: artifacts are left out,
and a run that cannot go on without Prefect says so.

    artifact ─▶ shown ─▶ Prefect, or a warning
    flow runs, states ─▶ no answer ─▶ PrefectLost, in one sentence

Prefect's own client tries again for about a minute. Leaves out the bar of a round, which workers
draw (`tasks.progress`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from httpx import HTTPError
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from artifacts.urls import without_secrets

logger = logging.getLogger(__name__)


class PrefectLost(RuntimeError):
    """Prefect's server did not answer, or no more knows the run: the run cannot go on."""

    def __init__(self, reason: str) -> None:
        address = without_secrets(PREFECT_API_URL.value())
        super().__init__(
            f"Prefect must answer at {address} as long as the run goes on, got {reason}; see"
            " whether its server runs, and with the data base that it had, then resume the run"
        )


async def shown(artifact: Awaitable[object]) -> None:
    """Keep an artifact. The boundary where Prefect's refusals stop: a run needs no picture."""
    try:
        await artifact
    except Exception as error:
        logger.warning("artifact not shown in Prefect: %s: %s", type(error).__name__, error)


@contextmanager
def explaining_prefects_loss() -> Iterator[None]:
    """Whatever fails in the block because Prefect does not answer, or has forgotten the run, fails
    as PrefectLost."""
    try:
        yield
    except HTTPError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PrefectLost(reason) from error
    except ObjectNotFound as error:
        raise PrefectLost("that it knows nothing of this run") from error
