"""One sandbox: a fork server behind walls, and the process of one program after the other.

    start(program, commands) -> replies, send(command) -> reply, ..., end()

Past its limit a program is killed by the fork server, at the host's word; when the fork server itself does not answer, the host kills
the whole sandbox and the next program gets a fresh one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tasks.rewards.base import RewardUnavailable
from tasks.rewards.child_process import ChildProcess, start_child
from tasks.rewards.frames import Json, receive_frame
from tasks.rewards.sandbox.candidate_process import GRACE_S, CandidateProcess, Command
from tasks.rewards.sandbox.isolation import ENVIRONMENT, Isolation, command
from tasks.rewards.sandbox.limits import SandboxLimits
from tasks.rewards.sandbox.reply import Reply

START_S = 30.0  # to a fork server that answers


class SandboxUnavailable(RewardUnavailable):
    """The sandbox cannot start, or was lost and lost again."""


class SandboxLost(SandboxUnavailable):
    """The sandbox died or stopped answering under a program; a fresh one may do."""


class Sandbox:
    """Runs one program at a time for one caller at a time; starts with `warm` or the first program."""

    def __init__(self, isolation: Isolation, limits: SandboxLimits) -> None:
        self.num_starts = 0
        self._isolation = isolation
        self._limits = limits
        self._process: ChildProcess | None = None
        self._candidate: CandidateProcess | None = None  # that waits for its program, or has one
        self._num_candidates = 0  # of this fork server
        self._is_abandoned = False

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
        if self._candidate is not None:
            self._candidate.end()
            self._candidate = None
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()

    def abandon(self) -> None:
        """From another thread: end what runs, under whoever waits for it, for good. `close` it afterwards."""
        self._is_abandoned = True
        process = self._process
        if process is not None:
            process.hang_up()

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
        message: dict[str, Json] = {"program": program, "is_main": stdin is not None, "asks": asks}
        return self._ask(lambda candidate: self._begin(candidate, message, stdin, limit_s), commands, keep=keep)

    def send(self, command: Command) -> Reply:
        """A command to the running program; "not_run" if it has ended."""
        if self._candidate is None or not self._candidate.is_running:
            return Reply(kind="not_run")
        (reply,) = self._ask(lambda _: None, (command,), keep=True)
        return reply

    def end(self) -> None:
        """Kill the program that was kept."""
        if self._candidate is not None:
            self._ask(lambda _: None, (), keep=False)

    def _begin(self, candidate: CandidateProcess, message: dict[str, Json], stdin: str | None, limit_s: float) -> Reply:
        if candidate.has_program:  # kept and never ended: no process sees two
            candidate = self._next_candidate()
        reply = candidate.start(message, stdin or "", limit_s)
        return reply if stdin is None else replace(reply, stdout=candidate.printed(self._limits.output_bytes))

    def _ask(self, begin: Callable[[CandidateProcess], Reply | None], commands: Sequence[Command], *, keep: bool) -> list[Reply]:
        assert self._candidate is not None
        try:
            first = begin(self._candidate)
            replies = [*([] if first is None else [first]), *self._candidate.obey(commands)]
            if not keep:
                self._next_candidate()
        except OSError as error:
            self.close()
            raise SandboxLost(f"the sandbox was lost under a program: {error}") from error
        if replies and replies[0].kind == "unconfined":
            self.close()
            raise SandboxUnavailable(f"the sandbox refused to run a program: {replies[0].detail}")
        return replies

    def _next_candidate(self) -> CandidateProcess:
        """End the candidate and ask for the next, which waits behind its walls for its program."""
        assert self._process is not None
        if self._candidate is not None:
            self._candidate.end()
            self._candidate = None
        self._num_candidates += 1
        self._candidate = CandidateProcess(self._process.stream, self._num_candidates)
        return self._candidate

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
        if self._is_abandoned:  # asked only now: from here on `abandon` finds the process
            self.close()
            raise SandboxLost("the sandbox was abandoned")
        self._await_ready()
        self._process.stream.settimeout(GRACE_S)
        self._num_candidates = 0
        try:
            self._next_candidate()
        except OSError as error:
            self.close()
            raise SandboxLost(f"the sandbox was lost before its first program: {error}") from error

    def _await_ready(self) -> None:
        assert self._process is not None
        popen = self._process.popen
        try:
            problem = str(receive_frame(self._process.stream, time.monotonic() + START_S).get("unavailable", ""))
        except TimeoutError:
            problem = f"not ready after {START_S:.0f} s"
        except OSError:
            self.close()  # all of its group: what bubblewrap leaves half built without itself waits forever, with our pipe in its hand
            assert popen.stderr is not None
            words = popen.stderr.read().decode(errors="replace").strip().splitlines()
            problem = words[-1] if words else "it ended before it was ready"
        assert popen.stderr is not None
        popen.stderr.close()  # nothing inside holds it any more but the fork server, which writes nothing
        if problem:
            self.close()
            raise SandboxUnavailable(f"the sandbox did not start: {problem}")
