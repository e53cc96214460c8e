"""The sandbox's own processes: one that is forked for every program, relays commands to it and holds the clock, and its origin.

    origin --fork--> session --fork--> candidate          host == frames over a socket ==> session == pipes ==> candidate
                                                           past a limit: SIGKILL, and the pipe's end

Runs inside the sandbox: standard library only. Trusted, executes no candidate's code. The modules that programs import are imported
in the origin once, so that a program costs forks and not an interpreter's start. The origin never sees a program, and a session sees
one: no candidate inherits memory in which another's text or results lie, not even freed memory.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tasks.rewards.frames import Json, receive_frame, send_frame
from tasks.rewards.sandbox.candidate import die_with_parent, run_program
from tasks.rewards.sandbox.candidate_message import MAX_REPLY_BYTES, read_message
from tasks.rewards.sandbox.landlock import restrict_to_reading
from tasks.rewards.sandbox.seccomp import Filter

Message = dict[str, Any]  # Any: JSON values

PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "queue", "random",
    "re", "statistics", "string", "textwrap", "time", "types", "typing", "unicodedata",
)  # fmt: skip
NOBODY = 65534
GO_ON, HOST_GONE = 0, 1  # exit codes of a session
SEND_S = 10.0  # for a child to read what does not fit its pipe
DYING_S = 0.5  # between the closing of a process's pipes and its end
PIPE_BYTES = 32 << 10  # that surely fit a pipe
GOES_ON = ("value", "raised", "ask")  # replies after which the program still runs
_LENGTH = struct.Struct(">I")


class HostGone(RuntimeError):
    """The other end of the control socket is closed."""


@dataclass(slots=True, kw_only=True)
class Child:
    """The process of a candidate."""

    pid: int
    commands: int  # descriptor to write commands to
    replies: int  # descriptor to read replies from
    stdin: int  # descriptor of the file that it reads
    stdout: int  # descriptor of the file that it prints to
    received: bytearray = field(default_factory=bytearray)  # of a reply that is not complete


class Session:
    """Serves the host for one program, whose process is there before the program is."""

    def __init__(self, control: socket.socket, memory_bytes: int, tmp_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._tmp_bytes = tmp_bytes
        self._control = control
        self._nothing = os.open("/dev/null", os.O_RDWR)
        self._filter = Filter()
        self._child: Child | None = None

    def serve(self) -> bool:
        """One frame of replies for every frame of commands, until the program is not kept; False when the host is gone."""
        try:
            kept = True
            self._child = self._fork()
            while kept:
                request: Message = dict(receive_frame(self._control))
                replies = self._obey(request)
                send_frame(self._control, {"replies": replies})
                kept = request["keep"]
                if replies and replies[-1]["kind"] not in GOES_ON:
                    self._end_child()
        except (ConnectionError, HostGone):
            return False
        finally:
            self._end_child()  # after the answer: the host need not wait for it
        return True

    def _obey(self, request: Message) -> list[dict[str, Json]]:
        """The replies to a start and to commands, in order; none after the one that ended the program."""
        replies: list[dict[str, Json]] = []
        if "start" in request:
            replies.append(self._timed(lambda: self._begin(request["start"]), request["limit_s"]))
            replies[0]["stdout"] = self._printed(request["start"])
        bodies = [_framed(json.dumps(command["message"]).encode("ascii")) for command in request["commands"]]
        ahead = sum(map(len, bodies)) <= PIPE_BYTES  # then the child need not wait between two commands
        for place, command in enumerate(request["commands"]):
            if self._child is None or (replies and replies[-1]["kind"] not in GOES_ON):
                break
            body = bodies[place] if not ahead else b"" if place else b"".join(bodies)
            replies.append(self._timed(lambda body=body: self._send(body), command["limit_s"]))  # type: ignore[misc]
        return replies

    def _timed(self, begin: Callable[[], None], limit_s: float) -> dict[str, Json]:
        """Begin something and await the child's reply to it, stamped with the time both took."""
        started_s = time.monotonic()
        try:
            begin()
            reply = self._await_reply(started_s + limit_s)
        except TimeoutError:
            reply = {"kind": "timeout"}
        except (BrokenPipeError, EOFError):
            reply = self._cause_of_death()
        return reply | {"wall_s": time.monotonic() - started_s}

    def _fork(self) -> Child:
        """A process behind all its walls that waits for its program: nothing of any program is in its memory yet."""
        stdin, stdout = os.memfd_create("stdin"), os.memfd_create("stdout")
        take_commands, give_commands = os.pipe()
        take_replies, give_replies = os.pipe()
        pid = os.fork()
        if pid == 0:
            streams = (stdin, stdout, self._nothing, take_commands, give_replies)
            run_program(self._memory_bytes, self._tmp_bytes, streams, self._filter)
        for descriptor in (take_commands, give_replies):
            os.close(descriptor)
        os.set_blocking(give_commands, False)
        return Child(pid=pid, commands=give_commands, replies=take_replies, stdin=stdin, stdout=stdout)

    def _begin(self, start: Message) -> None:
        """Hand the program over, its input into the file that it has as standard input."""
        assert self._child is not None
        os.pwrite(self._child.stdin, start["stdin"].encode("utf-8", "surrogatepass"), 0)
        self._send(_framed(json.dumps(start).encode("ascii")))

    def _send(self, body: bytes) -> None:
        """Write commands; a child that reads nothing for so long is as good as dead."""
        assert self._child is not None
        left = memoryview(body)
        while left:
            try:
                left = left[os.write(self._child.commands, left) :]
            except BlockingIOError:
                if not self._wait(self._child.commands, select.POLLOUT, time.monotonic() + SEND_S):
                    raise BrokenPipeError from None

    def _await_reply(self, deadline_s: float) -> dict[str, Json]:
        """The child's next message. TimeoutError past the deadline, EOFError when it is dead."""
        assert self._child is not None
        found = self._child.received
        while len(found) < _LENGTH.size or len(found) < _LENGTH.size + _LENGTH.unpack_from(found)[0]:
            if len(found) >= _LENGTH.size and _LENGTH.unpack_from(found)[0] > MAX_REPLY_BYTES:
                return {"kind": "too_long"}
            if not self._wait(self._child.replies, select.POLLIN, deadline_s):
                raise TimeoutError
            chunk = os.read(self._child.replies, 1 << 16)
            if not chunk:
                raise EOFError
            found += chunk
        end = _LENGTH.size + _LENGTH.unpack_from(found)[0]
        body = bytes(found[_LENGTH.size : end])
        del found[:end]
        return read_message(body)

    def _wait(self, descriptor: int, event: int, deadline_s: float) -> bool:
        """Whether the child's pipe is ready before the deadline. HostGone when the host is."""
        poller = select.poll()
        poller.register(descriptor, event)
        poller.register(self._control.fileno(), select.POLLRDHUP)
        ready = poller.poll(max(0.0, 1000 * (deadline_s - time.monotonic())))
        if any(one == self._control.fileno() for one, _ in ready):
            raise HostGone
        return bool(ready)

    def _printed(self, start: Message) -> str | None:
        """What the program wrote to its standard output, None if it is more than is kept."""
        if self._child is None or not start["is_main"]:
            return ""
        data = os.pread(self._child.stdout, start["output_bytes"] + 1, 0)
        return None if len(data) > start["output_bytes"] else data.decode("utf-8", "replace")

    def _cause_of_death(self) -> dict[str, Json]:
        """Why the child's pipes are closed: its end, or its own doing, which is its end too."""
        assert self._child is not None
        watched = os.pidfd_open(self._child.pid)
        has_ended = select.poll()
        has_ended.register(watched, select.POLLIN)
        if not has_ended.poll(1000 * DYING_S):
            os.kill(self._child.pid, signal.SIGKILL)
        os.close(watched)
        _, status = os.waitpid(self._child.pid, 0)
        self._child.pid = 0
        code = os.waitstatus_to_exitcode(status)
        return {"kind": "died", "detail": signal.Signals(-code).name if code < 0 else f"exit status {code}"}

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.pid:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        for descriptor in (child.commands, child.replies, child.stdin, child.stdout):
            os.close(descriptor)


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _confine_without_namespaces(readable: list[str]) -> None:
    """The weaker isolation: an unprivileged user, and files out of reach by Landlock."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    restrict_to_reading(readable)


def main() -> None:
    """`fork_server SOCKET_FD MEMORY_BYTES TMP_BYTES [READABLE_PATH...]`: paths are given where there are no namespaces."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        importlib.import_module(name)
    try:
        session = Session(control, int(sys.argv[2]), int(sys.argv[3]))
        if len(sys.argv) > 4:
            _confine_without_namespaces(sys.argv[4:])
    except (OSError, ValueError) as error:
        send_frame(control, {"unavailable": str(error)})
        return
    gc.collect()
    gc.freeze()
    send_frame(control, {"ready": True})
    while serve_apart(session):
        pass


def serve_apart(session: Session) -> bool:
    """Serve the next program in a process of its own, which waits for it already; False when the host is gone."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os._exit(GO_ON if session.serve() else HOST_GONE)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == GO_ON
