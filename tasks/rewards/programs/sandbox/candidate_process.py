"""The host's side of a candidate's process: the pipes to it, the clock, and its end.

    host --pipes' and files' far ends--> fork server --fork--> candidate
    host == frames over the pipes ==========================> candidate
    host --a byte, past a limit--> fork server --SIGKILL--> candidate
    host <== number and exit code === fork server

The process is forked and confined before there is a program for it, so that no response waits for
that. Its report that it is confined can be trusted, because no program is in it yet. Its later
messages cannot: only replies of known shapes are accepted.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from tasks.cluster.deaths import manner
from tasks.isolation.frames import CONFINED, DYING_S, ENDED, GRACE_S, LENGTH, WALLS_S
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.rewards.programs.sandbox.fork_server import END, FORK
from tasks.rewards.programs.sandbox.messages import (
    GOES_ON,
    MAX_REPLY_BYTES,
    Command,
    CommandReply,
    Kind,
    read_reply,
)

WATCH_S = 0.1  # between two checks of a fork server that is slow to fork
PIPE_BYTES = 32 << 10  # bytes that surely fit into a pipe


class ForkServerLost(ConnectionError):
    """Raised when the fork server is gone or does not answer."""


class Unconfined(Exception):
    """Raised when a candidate's process cannot be confined; it got no program."""


class CandidateDead(Exception):
    """Raised when a candidate has ended, or has closed its pipes and will be ended."""


class CandidateProcess:
    """The process of one program, for one caller. Methods raise ForkServerLost if the fork server
    fails, and Interrupted once the interrupt is set."""

    def __init__(
        self,
        control: socket.socket,
        number: int,
        interrupt: Interrupt,
        is_stopped: Callable[[], bool],
    ) -> None:
        """Ask the fork server at the other end of `control` for its `number`-th child. Raises
        OSError if the request fails. `is_stopped`: returns True if a signal has stopped the fork
        server."""
        self.is_running, self.has_program = True, False
        self._control, self._number = control, number
        self._interrupt, self._is_stopped = interrupt, is_stopped
        self._received = bytearray()  # bytes of an incomplete reply
        self._exit_code: int | None = None
        self._stdin = os.memfd_create("stdin")
        self._stdout = os.memfd_create("stdout")
        take_commands, self._commands = os.pipe()
        self._replies, give_replies = os.pipe()
        os.set_blocking(self._commands, False)
        try:
            socket.send_fds(
                control, [FORK], (self._stdin, self._stdout, take_commands, give_replies)
            )
        except OSError:
            self.end()
            raise
        finally:
            os.close(take_commands)
            os.close(give_replies)

    def start(self, command: Command, stdin: str) -> CommandReply:
        """Send the program and its standard input, and wait until its text is executed. Raises
        Unconfined or ForkServerLost if the process is not ready for a program."""
        self._await_walls()
        self.has_program = True
        os.pwrite(self._stdin, stdin.encode("utf-8", "surrogatepass"), 0)
        return self._timed(command.frame, command.limit_s)

    def obey(self, commands: Sequence[Command]) -> list[CommandReply]:
        """Send commands; returns their replies in order, until one ended the program."""
        bodies = [command.frame for command in commands]
        if sum(map(len, bodies)) <= PIPE_BYTES:  # no wait for the host between two commands
            bodies = [b"".join(bodies), *[b""] * len(bodies)][: len(bodies)]
        replies: list[CommandReply] = []
        for body, command in zip(bodies, commands, strict=True):
            if not self.is_running:
                break
            replies.append(self._timed(body, command.limit_s))
        return replies

    def printed(self, max_bytes: int) -> str | None:
        """The program's standard output; None if it is longer than `max_bytes`."""
        data = os.pread(self._stdout, max_bytes + 1, 0)
        return None if len(data) > max_bytes else data.decode("utf-8", "replace")

    def end(self) -> None:
        """Request the kill of the process, without waiting for it; does nothing if it has ended. No
        other method may be called afterwards."""
        self.is_running = False
        descriptors = (self._commands, self._replies, self._stdin, self._stdout)
        self._commands = self._replies = self._stdin = self._stdout = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        if self._exit_code is None and descriptors[0] >= 0:
            self._request_end()

    def _await_walls(self) -> None:
        """Wait for the process to report that it is confined. It has no program yet that could
        forge the report, and the program's time starts after it."""
        deadline_s = time.monotonic() + WALLS_S
        try:
            report = self._receive(time.monotonic() + WATCH_S)
            while report == "timeout" and time.monotonic() < deadline_s:
                if self._is_stopped():
                    raise ForkServerLost("the process that forks candidates was stopped")
                report = self._receive(time.monotonic() + WATCH_S)
        except CandidateDead:
            cause = self._cause_of_death().detail
            raise ForkServerLost(f"a candidate ended before it had a program: {cause}") from None
        if not isinstance(report, bytes):
            raise ForkServerLost(f"a candidate's walls did not stand after {WALLS_S:.0f} s")
        if report != CONFINED:
            raise Unconfined(report.decode("utf-8", "replace"))
        self._await_end(0.0)  # an end before it has a program is not the program's fault
        if self._exit_code is not None:
            raise ForkServerLost("a candidate was ended before it had a program")

    def _timed(self, body: bytes, limit_s: float) -> CommandReply:
        """Send a message and wait for its reply, whose `wall_s` covers both."""
        started_s = time.monotonic()
        deadline_s = started_s + limit_s
        try:
            is_sent = self._send(body, deadline_s)
            received = self._receive(deadline_s) if is_sent else "timeout"
            if isinstance(received, bytes):
                reply = read_reply(received)
            else:
                reply = CommandReply(kind=received)
        except CandidateDead:
            reply = self._cause_of_death()
        self.is_running = reply.kind in GOES_ON
        return replace(reply, wall_s=time.monotonic() - started_s)

    def _send(self, body: bytes, deadline_s: float) -> bool:
        """Write to the commands' pipe; False if the candidate does not read before the deadline."""
        left = memoryview(body)
        while left:
            try:
                left = left[os.write(self._commands, left) :]
            except BlockingIOError:
                if not self._wait(self._commands, select.POLLOUT, deadline_s):
                    return False
            except BrokenPipeError:
                raise CandidateDead from None
        return True

    def _receive(self, deadline_s: float) -> bytes | Kind:
        """The candidate's next message; "timeout", or "too_long" above MAX_REPLY_BYTES."""
        found = self._received
        while len(found) < LENGTH.size or len(found) < LENGTH.size + LENGTH.unpack_from(found)[0]:
            if len(found) >= LENGTH.size and LENGTH.unpack_from(found)[0] > MAX_REPLY_BYTES:
                return "too_long"
            if not self._wait(self._replies, select.POLLIN, deadline_s):
                return "timeout"
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise CandidateDead
            found += chunk
        end = LENGTH.size + LENGTH.unpack_from(found)[0]
        body = bytes(found[LENGTH.size : end])
        del found[:end]
        return body

    def _wait(self, descriptor: int, event: int, deadline_s: float) -> bool:
        """Wait until a pipe is ready; False after the deadline, CandidateDead if it never will
        be."""
        poller = select.poll()
        poller.register(descriptor, event)
        poller.register(self._interrupt.fileno(), select.POLLIN)
        if self._exit_code is None:
            poller.register(self._control.fileno(), select.POLLIN)
        while True:
            left_s = 0.0 if self._exit_code is not None else max(0.0, deadline_s - time.monotonic())
            ready = [readable for readable, _ in poller.poll(1000 * left_s)]
            if self._interrupt.fileno() in ready:
                raise Interrupted("nobody needs the verdict")
            if descriptor in ready or not ready:
                break
            self._receive_end()
            if self._exit_code is not None:
                poller.unregister(self._control.fileno())
        if not ready and self._exit_code is not None:
            raise CandidateDead
        return bool(ready)

    def _cause_of_death(self) -> CommandReply:
        """Get the candidate's exit code from the fork server as a reply "died"; kill the candidate
        if it does not end by itself within DYING_S."""
        self._await_end(DYING_S)
        if self._exit_code is None:
            self._request_end()
            self._await_end(GRACE_S)
        if self._exit_code is None:
            raise ForkServerLost(f"no end of a candidate reported for {GRACE_S:.0f} s")
        return CommandReply(kind="died", detail=manner(self._exit_code))

    def _await_end(self, limit_s: float) -> None:
        poller = select.poll()
        deadline_s = time.monotonic() + limit_s
        poller.register(self._control.fileno(), select.POLLIN)
        while self._exit_code is None and poller.poll(
            max(0.0, 1000 * (deadline_s - time.monotonic()))
        ):
            self._receive_end()

    def _receive_end(self) -> None:
        """Receive the fork server's report of an end, of this candidate or of an earlier one."""
        report = self._control.recv(ENDED.size, socket.MSG_WAITALL)
        if len(report) < ENDED.size:
            raise ForkServerLost("the process that forks candidates is gone")
        number, code = ENDED.unpack(report)
        if number == self._number:
            self._exit_code = code

    def _request_end(self) -> None:
        """Ask the fork server to kill the running child; if it is gone, so is the child."""
        with suppress(OSError):
            self._control.sendall(END)
