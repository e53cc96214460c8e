"""Calls that a tracking server has not taken yet, made in order until it takes or refuses them.

    put ─▶ first in, first sent ─▶ taken | refused: dropped with a warning | unreachable: all wait

A server that is down lengthens the queue and costs one warning; nothing here ever raises because of
it. One that lets its callers wait is tried again only so often that the waits are a small share of
the time. Leaves out what is sent (`tracking`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

WAITING_SHARE = 0.05  # of the time goes into tries that fail, at most
QUICK_S = 0.1  # a try that fails sooner, as where nobody listens, costs nothing
REFUSALS = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
)  # of a call; where a user or a password is refused, all of them wait


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something MLflow does not have yet."""

    what: str  # for messages
    send: Callable[[], None]


class Outbox:
    """Calls to one tracking server that wait to be made."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._uri = uri
        self._clock = clock
        self._due_s = -math.inf  # when the server is tried again, by the clock
        self._queue: deque[_Entry] = deque()
        self._warned = False
        self.refused: list[str] = []  # what the server refused, and does not have

    @property
    def waiting(self) -> tuple[str, ...]:
        """What the server has not taken yet."""
        return tuple(entry.what for entry in self._queue)

    def put(self, what: str, send: Callable[[], None], *, is_last: bool = False) -> bool:
        """Send this after all that waits already; the last one is tried in any case. True if
        nothing waits afterwards."""
        self._queue.append(_Entry(what, send))
        return self._flush() if is_last or self._clock() >= self._due_s else False

    def _flush(self) -> bool:
        """The boundary where MLflow's failures stop: refused entries are dropped, unsent ones wait
        in order."""
        while self._queue:
            entry, began_s = self._queue[0], self._clock()
            try:
                entry.send()
            except Exception as error:
                if getattr(error, "error_code", None) not in REFUSALS:
                    self._warn(error)
                    self._rest(self._clock() - began_s)
                    return False
                logger.warning(
                    "tracking=%s refused=%s reason=%s", self._uri, entry.what, first_line(error)
                )
                self.refused.append(entry.what)
            self._queue.popleft()
        self._warned = False
        return True

    def _rest(self, failed_within_s: float) -> None:
        if failed_within_s > QUICK_S:
            self._due_s = self._clock() + failed_within_s / WAITING_SHARE

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            logger.warning(
                "tracking=%s unreachable, training goes on and logs later reason=%s",
                self._uri,
                first_line(error),
            )
        self._warned = True


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type if it says nothing. SQLAlchemy may say when
    it happened before it says what."""
    lines = str(error).strip().splitlines()
    told = [line for line in lines if not line.startswith("(raised as a result of")]
    return (told or [type(error).__name__])[0]
