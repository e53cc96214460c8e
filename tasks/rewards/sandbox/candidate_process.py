"""A candidate's process as its host sees it: pipes of the host's own making, the host's clock, and its end.

    host --pipes' and files' far ends--> origin --fork--> candidate      host == frames over the pipes ==> candidate
    host --a byte, past a limit--> origin --SIGKILL--> candidate         host <== number and exit code === origin

The process is there, walled in, before its program is: asking for it costs no response any time. Whoever holds a `CandidateProcess`
may be told anything by it: replies of known shapes pass, and nothing else.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.rewards.frames import Json
from tasks.rewards.sandbox.candidate import LENGTH
from tasks.rewards.sandbox.fork_server import END, FORK, STATUS
from tasks.rewards.sandbox.reply import GOES_ON, MAX_REPLY_BYTES, Reply, read_reply

SEND_S = 10.0  # for a candidate to read what does not fit its pipe
DYING_S = 0.5  # between the closing of a process's pipes and its end
GRACE_S = 5.0  # for the origin to tell an end
PIPE_BYTES = 32 << 10  # that surely fit a pipe


class OriginLost(ConnectionError):
    """The process that forks candidates is gone, or does not answer."""


class CandidateDead(Exception):
    """It ended, or closed its pipes, which is its end too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something for a running program to do."""

    message: dict[str, Json]  # {"function", "arguments", "named"}, {"statement"}, or the {"value"} or {"raised"} of an "ask"
    limit_s: float  # seconds it may take

    @classmethod
    def call(cls, function: str, arguments: Json, named: Json, limit_s: float) -> Command:
        """Call a function of the program; arguments as `plain_values` writes a list and a dict."""
        return cls(message={"function": function, "arguments": arguments, "named": named}, limit_s=limit_s)


class CandidateProcess:
    """One program's process, for one caller; what it cannot do for the origin's sake raises OriginLost."""

    def __init__(self, control: socket.socket, number: int) -> None:
        """Ask the origin at the other end of `control` for its `number`-th child. OSError if there is no asking."""
        self.is_running, self.has_program = True, False
        self._control, self._number = control, number
        self._received = bytearray()  # of a reply that is not complete
        self._exit_code: int | None = None
        self._stdin, self._stdout = os.memfd_create("stdin"), os.memfd_create("stdout")
        take_commands, self._commands = os.pipe()
        self._replies, give_replies = os.pipe()
        os.set_blocking(self._commands, False)
        try:
            socket.send_fds(control, [FORK], (self._stdin, self._stdout, take_commands, give_replies))
        except OSError:
            self.end()
            raise
        finally:
            os.close(take_commands)
            os.close(give_replies)

    def start(self, message: dict[str, Json], stdin: str, limit_s: float) -> Reply:
        """Hand the program over, its input into the file that it has as standard input, and await the end of its text."""
        self.has_program = True
        os.pwrite(self._stdin, stdin.encode("utf-8", "surrogatepass"), 0)
        return self._timed(_framed(message), limit_s)

    def obey(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to commands, in order; none after the one that ended the program."""
        bodies = [_framed(command.message) for command in commands]
        if sum(map(len, bodies)) <= PIPE_BYTES:  # then it need not wait for us between two commands
            bodies = [b"".join(bodies), *[b""] * len(bodies)][: len(bodies)]
        replies: list[Reply] = []
        for body, command in zip(bodies, commands, strict=True):
            if not self.is_running:
                break
            replies.append(self._timed(body, command.limit_s))
        return replies

    def printed(self, max_bytes: int) -> str | None:
        """What it wrote to its standard output, None if that is more."""
        data = os.pread(self._stdout, max_bytes + 1, 0)
        return None if len(data) > max_bytes else data.decode("utf-8", "replace")

    def end(self) -> None:
        """Have it killed, without waiting; harmless when it has ended. Nothing may be asked of it any more."""
        self.is_running = False
        descriptors = (self._commands, self._replies, self._stdin, self._stdout)
        self._commands = self._replies = self._stdin = self._stdout = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        if self._exit_code is None and descriptors[0] >= 0:
            _tell_origin(self._control)

    def _timed(self, body: bytes, limit_s: float) -> Reply:
        """Send something and await the reply to it, stamped with the time both took."""
        started_s = time.monotonic()
        try:
            self._send(body)
            reply = self._await_reply(started_s + limit_s)
        except CandidateDead:
            reply = self._cause_of_death()
        self.is_running = reply.kind in GOES_ON
        return replace(reply, wall_s=time.monotonic() - started_s)

    def _send(self, body: bytes) -> None:
        """Write commands; one that reads nothing for so long is as good as dead."""
        left = memoryview(body)
        while left:
            try:
                left = left[os.write(self._commands, left) :]
            except BlockingIOError:
                if not self._wait(self._commands, select.POLLOUT, time.monotonic() + SEND_S):
                    raise CandidateDead from None
            except BrokenPipeError:
                raise CandidateDead from None

    def _await_reply(self, deadline_s: float) -> Reply:
        """The candidate's next message, or a "timeout" past the deadline."""
        found = self._received
        while len(found) < LENGTH.size or len(found) < LENGTH.size + LENGTH.unpack_from(found)[0]:
            if len(found) >= LENGTH.size and LENGTH.unpack_from(found)[0] > MAX_REPLY_BYTES:
                return Reply(kind="too_long")
            if not self._wait(self._replies, select.POLLIN, deadline_s):
                return Reply(kind="timeout")
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise CandidateDead
            found += chunk
        end = LENGTH.size + LENGTH.unpack_from(found)[0]
        body = bytes(found[LENGTH.size : end])
        del found[:end]
        return read_reply(body)

    def _wait(self, descriptor: int, event: int, deadline_s: float) -> bool:
        """Whether a pipe is ready before the deadline. CandidateDead when it never will be."""
        poller = select.poll()
        poller.register(descriptor, event)
        if self._exit_code is None:
            poller.register(self._control.fileno(), select.POLLIN)
        while True:
            left_s = 0.0 if self._exit_code is not None else max(0.0, deadline_s - time.monotonic())
            ready = [one for one, _ in poller.poll(1000 * left_s)]
            if descriptor in ready or not ready:
                break
            self._hear_origin()
            if self._exit_code is not None:
                poller.unregister(self._control.fileno())
        if not ready and self._exit_code is not None:
            raise CandidateDead
        return bool(ready)

    def _cause_of_death(self) -> Reply:
        """The end that its origin saw; one that is not seen soon is brought about."""
        self._await_end(DYING_S)
        if self._exit_code is None:
            _tell_origin(self._control)
            self._await_end(GRACE_S)
        if self._exit_code is None:
            raise OriginLost(f"no end of a candidate told for {GRACE_S:.0f} s")
        code = self._exit_code
        return Reply(kind="died", detail=signal.Signals(-code).name if code < 0 else f"exit status {code}")

    def _await_end(self, limit_s: float) -> None:
        poller, deadline_s = select.poll(), time.monotonic() + limit_s
        poller.register(self._control.fileno(), select.POLLIN)
        while self._exit_code is None and poller.poll(max(0.0, 1000 * (deadline_s - time.monotonic()))):
            self._hear_origin()

    def _hear_origin(self) -> None:
        """One end, told in full: this candidate's, or an earlier one's that nobody waited for."""
        told = self._control.recv(STATUS.size, socket.MSG_WAITALL)
        if len(told) < STATUS.size:
            raise OriginLost("the process that forks candidates is gone")
        number, code = STATUS.unpack(told)
        if number == self._number:
            self._exit_code = code


def _tell_origin(control: socket.socket) -> None:
    """The running child is to end; an origin that is gone has ended it."""
    try:
        control.sendall(END)
    except OSError:
        return


def _framed(message: dict[str, Json]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return LENGTH.pack(len(body)) + body
