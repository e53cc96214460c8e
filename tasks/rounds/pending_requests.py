"""Requests that wait until an engine has room: first in, first out, but for those that wait for
newer weights than an engine with room has. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable

from artifacts.records import Request

# the engine that gets a request, the second argument if it can be had; None when none has room,
# and weights that are new enough
Assign = Callable[[Request, str], str | None]


class PendingRequests:
    """What waits, and where some of it is wanted."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._aims: dict[str, str] = {}  # engines, by response id

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def response_ids(self) -> tuple[str, ...]:
        """What waits, in order."""
        return tuple(request.response_id for request in self._requests)

    def add(self, requests: Iterable[Request]) -> None:
        """These wait behind the others."""
        self._requests += requests

    def aim(self, response_id: str, engine: str) -> None:
        """When this response waits here, it is for this engine, if that has room then."""
        self._aims[response_id] = engine

    def forget(self, response_ids: Collection[str]) -> None:
        """Nobody wants these any more."""
        if self._requests:
            unwanted = {*response_ids}
            self._requests = deque(
                request for request in self._requests if request.response_id not in unwanted
            )

    def next(self, assign: Assign) -> tuple[str, Request] | None:
        """The first request that an engine can have, with that engine; None when none is left, or
        no engine can have any."""
        in_vain = math.inf  # no engine can have what needs weights so new
        for place, request in enumerate(self._requests):
            if request.oldest_version >= in_vain:
                continue
            name = assign(request, self._aims.get(request.response_id, ""))
            if name is not None:
                del self._requests[place]
                self._aims.pop(request.response_id, None)
                return name, request
            in_vain = request.oldest_version
        return None
