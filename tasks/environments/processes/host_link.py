"""A pool's end of the stream to one host: an answer to an order, within a limit.

An answer that comes when its call is over is late: it is counted and dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tasks.environments.processes.answers import BadAnswer
from tasks.environments.processes.host_process import LENGTH


class Unanswered(Exception):
    """No answer within the limit."""


class LinkLost(Exception):
    """The process closed its end, which is its own end too."""


class HostLink(asyncio.Protocol):
    """One call at a time. What the process sends is bounded before it is kept."""

    def __init__(self, max_answer_bytes: int, late: Callable[[], None]) -> None:
        """`late` is called at every answer after the end of its call."""
        self._max_answer_bytes = max_answer_bytes
        self._late = late
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()  # of an answer that is not complete
        self._answer: asyncio.Future[bytes] | None = None
        self._is_over = False  # no answer counts any more
        self._fault: Exception | None = None  # that the next call ends with

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        self._break(LinkLost("its process closed the stream"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (answer := self._next()) is not None:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)
            elif self._is_over:
                self._late()
            else:
                self._break(BadAnswer("its process broke the protocol: an answer nobody asked for"))
                self.disconnect()  # one that says more and more would have the loop to itself

    def expect(self) -> None:
        """From here on the next message is the answer."""
        assert self._answer is None, "one call at a time"
        self._answer = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            self._fail(self._fault)

    def send(self, orders: bytes) -> None:
        """Write without waiting."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(orders)

    async def answer(self, limit_s: float) -> bytes:
        """The answer that is expected. Raises Unanswered, LinkLost or BadAnswer; nothing is
        answered after that."""
        assert self._answer is not None
        clock = asyncio.get_running_loop().call_later(limit_s, self._give_up, limit_s)
        try:
            return await self._answer
        except BaseException:
            self._is_over = True
            raise
        finally:
            clock.cancel()
            self._answer = None

    def close(self) -> None:
        """Nothing is asked any more; what arrives until the stream ends is late."""
        self._break(LinkLost("its call was given up"))

    def disconnect(self) -> None:
        """Close the stream at once, whatever may still arrive."""
        self.close()
        self._received.clear()
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def _give_up(self, limit_s: float) -> None:
        self._break(Unanswered(f"no answer within {limit_s:g} s"))

    def _break(self, fault: Exception) -> None:
        self._is_over = True
        self._fault = self._fault or fault
        self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(fault)
            self._answer.exception()  # heard, even if nobody awaits it

    def _next(self) -> bytes | None:
        """The next complete message; one that is too long breaks the link."""
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        if length > self._max_answer_bytes:
            self._break(
                BadAnswer(f"an answer of {length} bytes, at most {self._max_answer_bytes} may be")
            )
            self.disconnect()
            return None
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return message
