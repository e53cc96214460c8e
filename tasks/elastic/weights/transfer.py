"""Sends a receiver's requests to weight servers. They block, with a bound on every wait and on the
whole answer.

    TransferSources: the peer that the origin names; if that fails, another peer or the origin, at
                     the next of its addresses where one does not answer
    ServerConnection: requests, bytes of a shard

http.client receives into allocated memory: one block, which stays in the core's cache on its way to
the hash and the file. Receiving, hashing and writing release the interpreter lock.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from artifacts.weight_shards import Shard
from tasks.elastic.weights.access import WeightRequest, signed
from tasks.elastic.weights.held_version import RECEIVER_REPORT, ReceiverReport

logger = logging.getLogger(__name__)

STALL_S = 6.0  # without a byte, after which a connection breaks; more than SHARD_WAIT_S
BLOCK_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 64 << 20  # of a manifest; the manifest of 1 TB has about 20 MB
_MAX_SENTENCE_BYTES = 500
# statuses that a repeated request would get again
_LASTING = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.GONE,
}


class WeightsRefused(ValueError):
    """The weights cannot be had; repeating the request does not help."""


class TransferBroken(OSError):
    """The connection failed, stalled, or sent other bytes; a new one may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Parameters of one pull by an elastic worker."""

    origins: tuple[str, ...]  # http://ADDRESS:PORT of the trainer's weight server, the first to ask
    name: str  # the version's number, or MODEL for the folder that the run started from
    token: str = field(repr=False)  # the run's secret
    deadline_s: float  # seconds for the whole pull
    receiver: str  # the elastic worker's name


def _http_connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"weights come from http://ADDRESS:PORT, got {url!r}; correct it")
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=STALL_S)


class ServerConnection:
    """A thread's connection to one server at a time; opened when first needed."""

    def __init__(self, url: str, token: str, end_s: float) -> None:
        """end_s: monotonic time at which the connection is broken off, even during an answer."""
        self.url = url
        self._token, self._end_s = token, end_s
        self._is_cut = False
        self._http = _http_connection(url)
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def switch(self, url: str) -> None:
        """Connect to this server from now on; keeps the connection if the server is the same."""
        if url != self.url:
            self.close()
            self.url, self._http = url, _http_connection(url)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._http.close()

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The whole answer to a request. Raises WeightsRefused or TransferBroken."""
        with self._answer(method, path, body) as response:
            sent = response.read(_MAX_ANSWER_BYTES + 1)
        if len(sent) > _MAX_ANSWER_BYTES:
            raise WeightsRefused(
                f"{self.url} must answer in {_MAX_ANSWER_BYTES} bytes at most, it sends more; is"
                " it a weight server?"
            )
        return sent

    def receive(self, name: str, shard: Shard, start: int) -> Generator[memoryview, None, None]:
        """Receive the shard's bytes from its `start`-th on. Yields blocks, each valid until
        the next is yielded. Raises WeightsRefused or TransferBroken."""
        first, left = shard.offset + start, shard.size - start
        path, ranges = f"/versions/{name}/{quote(shard.file)}", f"bytes={first}-{shard.end - 1}"
        with self._answer("GET", path, ranges=ranges) as response:
            answered = (response.getheader("Content-Range") or "").partition("/")[0]
            if answered != ranges.replace("=", " "):
                raise TransferBroken(f"{self.url} gave {answered or 'no range'} for {ranges}")
            while left:
                got = response.readinto(self._block[: min(left, BLOCK_BYTES)])
                if not got:
                    raise TransferBroken(f"{self.url} ended {left} bytes before the shard did")
                left -= got
                yield self._block[:got]

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None = None, ranges: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        cut = threading.Timer(self._end_s - time.monotonic(), self._cut)
        try:
            proof = self._proof(method, path, body or b"", ranges)
            headers = {"Authorization": proof} | ({"Range": ranges} if ranges else {})
            cut.start()
            self._http.request(method, path, body, headers)
            response = self._http.getresponse()
            if not 200 <= response.status < 300:
                sentence = response.read(_MAX_SENTENCE_BYTES).decode(errors="replace").strip()
                reason = f"{self.url} answered {response.status}: {sentence}"
                if response.status in _LASTING:
                    raise WeightsRefused(reason)
                raise TransferBroken(reason)
            yield response
            response.read()  # nothing, which frees the connection for the next request
        except BaseException as error:
            self._http.close()  # the rest of this answer would be read as the next answer
            if isinstance(error, http.client.HTTPException | OSError):
                reason = str(error) or type(error).__name__
                reason = "timed out before all of the answer had come" if self._is_cut else reason
                named = reason if self.url in reason else f"{self.url}: {reason}"
                raise TransferBroken(named) from error
            raise
        finally:
            cut.cancel()

    def _cut(self) -> None:
        """Break the connection at end_s, even if no single wait has exceeded STALL_S."""
        self._is_cut = True
        if (open_socket := self._http.sock) is not None:
            with suppress(OSError):  # the socket has just been closed
                open_socket.shutdown(socket.SHUT_RDWR)

    def _proof(self, method: str, path: str, body: bytes, ranges: str) -> str:
        """Value of the header Authorization for this request, valid once. now_s: Unix seconds."""
        if self._http.sock is None:
            self._http.connect()
        sender = self._http.sock.getsockname()[0]
        request = WeightRequest(method=method, path=path, ranges=ranges, body=body, sender=sender)
        return signed(self._token, request, time.time())


class TransferSources:
    """The server from which to pull the next shard, shared by the threads of one transfer."""

    def __init__(self, order: Pull, end_s: float) -> None:
        """end_s: monotonic end of the pull."""
        self._order, self._end_s = order, end_s
        self.port: int | None = None  # of the worker's own server, if it has one
        self._failed: list[str] = []
        self._lock = threading.Lock()
        self._origins = deque(order.origins)
        self.current = self.origin  # the address from which to pull now

    @property
    def origin(self) -> str:
        """The address of the origin that answered last, or that is tried next."""
        return self._origins[0]

    def find(self) -> None:
        """Ask the origin for a source; if it does not name one, pull from the origin itself."""
        try:
            source = json.loads(self._report("source"))["source"] or self.origin
            _http_connection(source)  # is it an address at all?
            self.current = source
        except (TransferBroken, WeightsRefused, ValueError, KeyError, TypeError) as error:
            logger.info("pulling from the origin, which named no peer: %s", error)
            self.current = self.origin

    def give_up(self, source: str, reason: str) -> bool:
        """Replace this peer, which failed, by another source. False if it is the origin, which is
        asked again, at the next of its addresses."""
        with self._lock:
            if source in self._order.origins:
                if source == self.origin:
                    self._origins.rotate(-1)
                if self.current == source:
                    self.current = self.origin
                return False
            if source == self.current:  # else another thread has replaced it already
                name = self._order.name
                logger.warning("gave up peer=%s version=%s: %s", source, name, reason)
                self._failed.append(source)
                self.find()
        return True

    def complete(self) -> None:
        """Report to the origin that this worker, which may now be a source, has every shard."""
        try:
            self._report("complete")
        except (TransferBroken, WeightsRefused) as error:
            name = self._order.name
            logger.info("the origin did not hear that version=%s is here: %s", name, error)

    def _report(self, subject: str) -> bytes:
        order, failed = self._order, tuple(self._failed)
        report = ReceiverReport(receiver=order.receiver, port=self.port, failed=failed)
        body = RECEIVER_REPORT.dump_json(report)
        with closing(ServerConnection(self.origin, order.token, self._end_s)) as connection:
            return connection.request("POST", f"/versions/{order.name}/{subject}", body)
