"""The queue of calls to a tracking server, made in order until the server takes or refuses them.

    put ─▶ first in, first sent ─▶ taken | refused: dropped with a warning | unreachable: all wait

A server that is down lengthens the queue and costs one warning; nothing here ever raises because of
it. A server that lets its callers wait is tried again only so often that the waits are a small
share of the time. Leaves out the calls themselves (`tracking`).
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
    """A call that MLflow has not taken yet."""

    subject: str  # for messages
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
        self.refused: list[str] = []  # subjects of calls that the server refused

    @property
    def waiting(self) -> tuple[str, ...]:
        """Subjects of the calls that the server has not taken yet."""
        return tuple(entry.subject for entry in self._queue)

    def put(self, subject: str, send: Callable[[], None], *, is_last: bool = False) -> bool:
        """Send a call after all that wait already; the last call is tried in any case. True if
        nothing waits afterwards."""
        self._queue.append(_Entry(subject, send))
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
                    if not self._warned:
                        logger.warning(
                            "tracking=%s unreachable, training goes on and logs later reason=%s",
                            self._uri,
                            first_line(error),
                        )
                    self._warned = True
                    failed_s = self._clock() - began_s
                    if failed_s > QUICK_S:
                        self._due_s = self._clock() + failed_s / WAITING_SHARE
                    return False
                logger.warning(
                    "tracking=%s refused=%s reason=%s", self._uri, entry.subject, first_line(error)
                )
                self.refused.append(entry.subject)
            self._queue.popleft()
        self._warned = False
        return True


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type without a message. SQLAlchemy may begin
    with a line on the circumstances, which is left out."""
    lines = str(error).strip().splitlines()
    relevant = [line for line in lines if not line.startswith("(raised as a result of")]
    return (relevant or [type(error).__name__])[0]
