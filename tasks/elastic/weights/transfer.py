"""One connection over which a receiver asks a weight server, blocking, every wait bounded, and the
whole of an answer, however slowly it comes.

The bytes of a range go from the socket through one block, which stays in the core's cache, into the
hash and the file. http.client and no asynchronous library: it receives into memory that is there,
and this thread needs no interpreter lock while it receives, hashes and writes.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from artifacts.weight_shards import Shard
from tasks.elastic.weights.request_proof import Ask, signed

STALL_S = 6.0  # without a byte, after which a connection is broken; more than SHARD_WAIT_S
BLOCK_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 64 << 20  # a manifest; that of 1 TB has about 20 MB
_MOST_SENTENCE_BYTES = 500
# statuses that asking again does not change
_LASTING = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.GONE,
}


class WeightsRefused(ValueError):
    """These weights are not to be had, however often one asks."""


class TransferBroken(OSError):
    """The connection failed, stalled, or gave something else than was asked; the next may do
    better."""


class ServerConnection:
    """To one server, for one thread; opened when it is first needed."""

    def __init__(self, url: str, token: str, end_s: float) -> None:
        """end_s: when it breaks, whatever still comes, by the monotonic clock."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"weights come from http://ADDRESS:PORT, got {url!r}; correct it")
        self.url = url
        self._token = token
        self._end_s = end_s
        self._is_cut = False
        self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=STALL_S)
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def close(self) -> None:
        """Once more is no error."""
        self._http.close()

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The answer's body, as a whole. Raises WeightsRefused, TransferBroken."""
        with self._answer(method, path, body, {}) as response:
            sent = response.read(_MOST_ANSWER_BYTES + 1)
        if len(sent) > _MOST_ANSWER_BYTES:
            raise WeightsRefused(
                f"{self.url} must answer in {_MOST_ANSWER_BYTES} bytes at most, it sends more; is"
                " it a weight server?"
            )
        return sent

    def receive(self, name: str, shard: Shard, start: int) -> Generator[memoryview, None, None]:
        """The shard's bytes from its `start`-th on, in blocks, each valid until the next is asked
        for. Raises WeightsRefused, TransferBroken."""
        first, left = shard.offset + start, shard.size - start
        path, ranges = f"/versions/{name}/{quote(shard.file)}", f"bytes={first}-{shard.end - 1}"
        with self._answer("GET", path, None, {"Range": ranges}) as response:
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
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        cut = threading.Timer(self._end_s - time.monotonic(), self._cut)
        try:
            proof = self._signed(method, path, body or b"", headers.get("Range", ""))
            cut.start()
            self._http.request(method, path, body, {**headers, "Authorization": proof})
            response = self._http.getresponse()
            _check(self.url, response)
            yield response
            response.read()  # nothing, which frees the connection for the next request
        except BaseException as error:
            self._http.close()  # what is left of an answer would be taken for the next one
            if isinstance(error, http.client.HTTPException | OSError):
                told = str(error) or type(error).__name__
                told = "timed out before all of the answer had come" if self._is_cut else told
                raise TransferBroken(told if self.url in told else f"{self.url}: {told}") from error
            raise
        finally:
            cut.cancel()

    def _cut(self) -> None:
        """Whoever waits for bytes gets no more: each may have come within STALL_S."""
        self._is_cut = True
        if (open_socket := self._http.sock) is not None:
            with suppress(OSError):  # it has just been closed
                open_socket.shutdown(socket.SHUT_RDWR)

    def _signed(self, method: str, path: str, body: bytes, ranges: str) -> str:
        """What shows that this request is of somebody who knows the token, from this address."""
        if self._http.sock is None:
            self._http.connect()
        sender = self._http.sock.getsockname()[0]
        ask = Ask(method=method, path=path, ranges=ranges, body=body, sender=sender)
        return signed(self._token, ask, time.time())


class Lane:
    """What one thread pulls over: one connection at a time, another when the source changes."""

    def __init__(self, token: str, end_s: float) -> None:
        """end_s: as of a connection."""
        self._token = token
        self._end_s = end_s
        self._connection: ServerConnection | None = None

    @property
    def url(self) -> str:
        """The server that it pulled from last; empty at first."""
        return "" if self._connection is None else self._connection.url

    def close(self) -> None:
        """Close what is open."""
        if self._connection is not None:
            self._connection.close()

    def to(self, url: str) -> ServerConnection:
        """The connection to this server."""
        if self._connection is None or self._connection.url != url:
            self.close()
            self._connection = ServerConnection(url, self._token, self._end_s)
        return self._connection


def _check(url: str, response: http.client.HTTPResponse) -> None:
    """Raises WeightsRefused or TransferBroken unless the server gives what was asked."""
    if 200 <= response.status < 300:
        return
    sentence = response.read(_MOST_SENTENCE_BYTES).decode(errors="replace").strip()
    told = f"{url} answered {response.status}: {sentence}"
    raise WeightsRefused(told) if response.status in _LASTING else TransferBroken(told)
