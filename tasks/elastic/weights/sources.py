"""Where a receiver gets the next shard from: the peer that it was sent to as long as it gives, then
another peer or the origin."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import closing

from tasks.elastic.weights.asking import VersionReader, as_json
from tasks.elastic.weights.transfer import ServerConnection, TransferBroken, WeightsRefused

logger = logging.getLogger(__name__)


class TransferSources:
    """What the threads of one transfer have in common."""

    def __init__(
        self, origin: str, token: str, name: str, receiver: str, port: int | None, end_s: float
    ) -> None:
        """name: of the version. receiver: who pulls, as the origin knows it. port: where it serves
        the version on, None if it does not. end_s: of the pull, by the monotonic clock."""
        self._origin = origin
        self._token = token
        self._name = name
        self._receiver = receiver
        self._port = port
        self._end_s = end_s
        self._failed: list[str] = []
        self._lock = threading.Lock()
        self._current = origin

    @property
    def current(self) -> str:
        """The address from which to pull now."""
        return self._current

    def find(self) -> None:
        """Have the origin say whom to pull from; itself if it does not answer."""
        try:
            answer = json.loads(self._tell("source"))
            told = answer["source"] or self._origin
            ServerConnection(told, self._token, self._end_s)  # is it an address at all?
            self._current = told
        except (TransferBroken, WeightsRefused, ValueError, KeyError, TypeError) as error:
            logger.info("pulling from the origin, which named no peer: %s", error)
            self._current = self._origin

    def give_up(self, source: str, reason: str) -> bool:
        """This peer does not give what it should: find another. False for the origin, of which
        there is only one."""
        if source == self._origin:
            return False
        with self._lock:
            if source == self._current:  # not done yet by another thread
                logger.warning("gave up peer=%s version=%s: %s", source, self._name, reason)
                self._failed.append(source)
                self.find()
        return True

    def complete(self) -> None:
        """Tell the origin that all is there; others may then be sent here."""
        try:
            self._tell("complete")
        except (TransferBroken, WeightsRefused) as error:
            logger.info("the origin did not hear that version=%s is here: %s", self._name, error)

    def _tell(self, what: str) -> bytes:
        asked = VersionReader(receiver=self._receiver, port=self._port, failed=tuple(self._failed))
        with closing(ServerConnection(self._origin, self._token, self._end_s)) as connection:
            return connection.ask("POST", f"/versions/{self._name}/{what}", as_json(asked))
