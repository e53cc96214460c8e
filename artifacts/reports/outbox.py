"""A queue of calls to a tracking server. They are made in order, each until the server takes or
refuses it.

    put ─▶ first in, first sent ─▶ taken | refused: dropped with a warning | unreachable: all wait

While the server is down, one warning is logged; the queue never raises because of the server.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

WAITING_SHARE = 0.05  # largest share of the time that failed tries may take
QUICK_S = 0.1  # tries that fail sooner (connection refused) do not count
REFUSALS = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
)  # error codes for a single refused call; if the user or password is refused, all calls wait


class Outbox:
    """A queue of calls to one tracking server."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns seconds that never decrease."""
        self._uri = uri
        self._clock = clock
        self._due_s = -math.inf  # when the server is tried again, by the clock
        self._queue: deque[tuple[str, Callable[[], None]]] = deque()  # subjects and calls
        self._warned = False
        self.refused: list[str] = []  # subjects of calls that the server refused

    @property
    def waiting(self) -> tuple[str, ...]:
        """Subjects of the calls that the server has not taken yet."""
        return tuple(subject for subject, _ in self._queue)

    def put(self, subject: str, send: Callable[[], None], *, is_last: bool = False) -> bool:
        """Queue a call and send the queue in order, unless the server is to be left alone for now;
        with `is_last` it is tried in any case. True if no call waits afterwards. MLflow's errors
        stop here: refused calls are dropped, and calls that could not be sent wait."""
        self._queue.append((subject, send))
        if not is_last and self._clock() < self._due_s:
            return False
        while self._queue:
            (subject, send), began_s = self._queue[0], self._clock()
            try:
                send()
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
                reason = first_line(error)
                logger.warning("tracking=%s refused=%s reason=%s", self._uri, subject, reason)
                self.refused.append(subject)
            self._queue.popleft()
        self._warned = False
        return True


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if there is no message. SQLAlchemy's
    introductory line "(raised as a result of ...)" is skipped."""
    lines = str(error).strip().splitlines()
    relevant = [line for line in lines if not line.startswith("(raised as a result of")]
    return (relevant or [type(error).__name__])[0]
