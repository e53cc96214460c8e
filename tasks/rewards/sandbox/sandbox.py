"""One sandbox: a fork server behind walls, as its host sees it.

    start(program, commands) -> replies, send(command) -> reply, ..., end()

Past its limit a program is killed by the fork server; when the fork server itself does not answer, the host kills the whole sandbox
and the next program gets a fresh one. Everything in a reply but `kind` and `wall_s` may be the program's invention.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tasks.rewards.base import RewardUnavailable
from tasks.rewards.child_process import ChildProcess, start_child
from tasks.rewards.frames import Json, receive_frame, send_frame
from tasks.rewards.sandbox.isolation import ENVIRONMENT, Isolation, command
from tasks.rewards.sandbox.limits import SandboxLimits

Kind = Literal["value", "raised", "ask", "memory", "exited", "timeout", "died", "too_long", "forged", "not_run", "unconfined"]
KINDS = frozenset(get_args(Kind))
START_S = 30.0  # to a fork server that answers
GRACE_S = 5.0  # that a fork server may take beyond the limit of a program


class SandboxUnavailable(RewardUnavailable):
    """The sandbox cannot start, or was lost and lost again."""


class SandboxLost(SandboxUnavailable):
    """The sandbox died or stopped answering under a program; a fresh one may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one command, and how long it took by the fork server's clock."""

    kind: Kind  # how it ended
    value: Json = None  # a result as `plain_values` writes it; the exception's name of "raised"
    detail: str = ""  # the exception's message, the signal of "died"
    stdout: str | None = ""  # of a whole program: what it printed, None if that was too much
    wall_s: float = 0.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something for a running program to do."""

    message: dict[str, Json]  # {"function", "arguments", "named"}, {"statement"}, or the {"value"} or {"raised"} of an "ask"
    limit_s: float  # seconds it may take

    @classmethod
    def call(cls, function: str, arguments: Json, named: Json, limit_s: float) -> Command:
        """Call a function of the program; arguments as `plain_values` writes a list and a dict."""
        return cls(message={"function": function, "arguments": arguments, "named": named}, limit_s=limit_s)


class Sandbox:
    """Runs one program at a time for one caller at a time; starts with `warm` or the first program."""

    def __init__(self, isolation: Isolation, limits: SandboxLimits) -> None:
        self.num_starts = 0
        self._isolation = isolation
        self._limits = limits
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the outermost process, None when there is none."""
        return self._process.popen.pid if self._process else None

    def warm(self) -> None:
        """Have it running now; SandboxUnavailable if it cannot."""
        if self._process is not None and self._process.popen.poll() is not None:
            self.close()
        if self._process is None:
            self._start()

    def close(self) -> None:
        """Kill everything inside; harmless without a process."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()

    def start(
        self,
        program: str,
        *,
        limit_s: float,
        stdin: str | None = None,
        asks: str = "",
        commands: Sequence[Command] = (),
        keep: bool = False,
    ) -> list[Reply]:
        """Execute a program's text, then commands; their replies, up to the one that ended the program, which `keep` lets go on.

        With `stdin` it is a whole program whose output is kept; without, its functions can be called. `asks`: name of a function
        that is not the program's own: calls of it come back as replies of kind "ask".
        """
        self.warm()
        start: dict[str, Json] = {
            "program": program,
            "stdin": stdin or "",
            "is_main": stdin is not None,
            "asks": asks,
            "output_bytes": self._limits.output_bytes,
        }
        return self._ask({"start": start, "limit_s": limit_s, "keep": keep}, commands, limit_s)

    def send(self, command: Command) -> Reply:
        """A command to the running program; "not_run" if it has ended."""
        replies = self._ask({"keep": True}, (command,), 0.0)
        return replies[0] if replies else Reply(kind="not_run")

    def end(self) -> None:
        """Kill the program that was kept."""
        self._ask({"keep": False}, (), 0.0)

    def _ask(self, request: dict[str, Json], commands: Sequence[Command], limit_s: float) -> list[Reply]:
        if self._process is None:
            return []
        deadline_s = time.monotonic() + limit_s + sum(command.limit_s for command in commands) + GRACE_S
        listed: list[Json] = [{"message": command.message, "limit_s": command.limit_s} for command in commands]
        try:
            send_frame(self._process.stream, request | {"commands": listed}, deadline_s)
            replies = _read_replies(receive_frame(self._process.stream, deadline_s))
        except OSError as error:  # TimeoutError and ConnectionError are of its kind
            self.close()
            raise SandboxLost(f"the sandbox was lost under a program: {error}") from error
        if replies and replies[0].kind == "unconfined":
            self.close()
            raise SandboxUnavailable(f"the sandbox refused to run a program: {replies[0].detail}")
        return replies

    def _start(self) -> None:
        try:
            self._process = start_child(
                lambda socket_fd: command(self._isolation, socket_fd, self._limits),
                env=ENVIRONMENT if self._isolation is Isolation.LANDLOCK else {},
                cwd="/",
                is_silent=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox could not be started: {error}") from error
        self.num_starts += 1
        self._await_ready()

    def _await_ready(self) -> None:
        assert self._process is not None
        popen = self._process.popen
        try:
            problem = str(receive_frame(self._process.stream, time.monotonic() + START_S).get("unavailable", ""))
        except TimeoutError:
            problem = f"not ready after {START_S:.0f} s"
        except OSError:
            assert popen.stderr is not None
            popen.kill()
            words = popen.stderr.read().decode(errors="replace").strip().splitlines()
            problem = words[-1] if words else "it ended before it was ready"
        assert popen.stderr is not None
        popen.stderr.close()  # nothing inside holds it any more but the fork server, which writes nothing
        if problem:
            self.close()
            raise SandboxUnavailable(f"the sandbox did not start: {problem}")


def _read_replies(frame: dict[str, Json]) -> list[Reply]:
    replies = frame.get("replies")
    if not isinstance(replies, list):
        raise ConnectionError("an answer that is not the fork server's")
    return [_read_reply(reply) for reply in replies]


def _read_reply(frame: dict[str, Any]) -> Reply:  # Any: JSON values
    kind: Any = frame.get("kind")  # Any: checked against the kinds
    if kind not in KINDS:
        raise ConnectionError("an answer that is not the fork server's")
    return Reply(
        kind=kind,
        value=frame.get("value"),
        detail=str(frame.get("detail", "")),
        stdout=frame.get("stdout", ""),
        wall_s=float(frame.get("wall_s", 0.0)),
    )
