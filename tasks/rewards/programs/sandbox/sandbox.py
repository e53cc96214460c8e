"""A sandbox: a confined fork server that forks one process per program, one program at a time.

    start(program, commands) -> replies, send(command) -> reply, ..., end()

If the fork server itself is dead or stopped, the host kills the whole sandbox, and the next program
gets a fresh one. Beside the walls of the isolation, a program has no installed packages, no new
processes, threads, sockets or signals (`seccomp`), and bounded memory, time and output
(`candidate`). `self_test` tests these walls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tasks.isolation.child_process import ChildProcess, NotStarted, start_walled
from tasks.isolation.frames import GRACE_S, Json
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import (
    INSIDE,
    ROOT,
    Isolation,
    SandboxLimits,
    View,
    interpreter_paths,
    variables,
    walls,
    without_packages,
)
from tasks.isolation.user_map import UserMap
from tasks.rewards.base import RewardUnavailable
from tasks.rewards.programs.sandbox.candidate_process import CandidateProcess, Unconfined
from tasks.rewards.programs.sandbox.messages import Command, CommandReply

START_S = 30.0  # to a fork server that answers


class SandboxUnavailable(RewardUnavailable):
    """Raised if the sandbox cannot start, or was lost twice."""


class SandboxLost(SandboxUnavailable):
    """Raised if the sandbox died or stopped answering; a fresh sandbox may work."""


class LostUnderProgram(SandboxLost):
    """Raised if the sandbox was lost while an untrusted program ran, perhaps by that program."""


@dataclass(eq=False)
class Sandbox:
    """Runs one program at a time for one caller at a time; starts with `warm` or the first program.

    Once the interrupt is set, every wait raises Interrupted, and the program is ended.
    """

    isolation: Isolation
    limits: SandboxLimits
    interrupt: Interrupt = field(default_factory=Interrupt)
    is_trusted: bool = False  # its programs are the run's own, and never blamed for its loss
    num_starts: int = field(default=0, init=False)
    _process: ChildProcess | None = field(default=None, init=False)
    _candidate: CandidateProcess | None = field(default=None, init=False)  # waiting or running
    _num_candidates: int = field(default=0, init=False)  # asked of this fork server

    @property
    def pid(self) -> int | None:
        """Process id of the sandbox's outermost process; None if it is not running."""
        return self._process.popen.pid if self._process else None

    def warm(self) -> None:
        """Start the sandbox unless it runs. Raises SandboxUnavailable if it cannot start."""
        if self._process is not None and self._process.popen.poll() is not None:
            self.close()
        if self._process is None:
            self._start()

    def close(self) -> None:
        """Kill the sandbox and all processes inside; does nothing if it is not running."""
        if self._candidate is not None:
            self._candidate.end()
            self._candidate = None
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()

    def start(
        self,
        program: str,
        *,
        limit_s: float,
        preamble: str = "",
        stdin: str | None = None,
        asks: str = "",
        commands: Sequence[Command] = (),
        keep: bool = False,
    ) -> list[CommandReply]:
        """Execute a program's text, then commands. Returns the reply to the text and to each
        command; no more after the reply that ended the program.

        `stdin`: if given, the text is a whole program with this standard input, and its output is
        kept; else the commands call its functions. `keep`: the program runs on until `end`.
        `preamble`: text that is executed before the program. `asks`: name of a function that the
        program lacks: each call of it comes back as an "ask" reply.
        """
        self.warm()
        message: dict[str, Json] = {
            "program": program,
            "preamble": preamble,
            "is_main": stdin is not None,
            "asks": asks,
        }

        def begin(candidate: CandidateProcess) -> CommandReply:
            if candidate.has_program:  # kept and not ended; a process gets only one program
                candidate = self._next_candidate()
            reply = candidate.start(Command(message=message, limit_s=limit_s), stdin or "")
            if stdin is None:
                return reply
            return replace(reply, stdout=candidate.printed(self.limits.output_bytes))

        return self._ask(begin, commands, keep=keep)

    def send(self, command: Command) -> CommandReply:
        """Send a command to the kept program; the reply is "not_run" if the program has ended."""
        if self._candidate is None or not self._candidate.is_running:
            return CommandReply(kind="not_run")
        (reply,) = self._ask(lambda _: None, (command,), keep=True)
        return reply

    def end(self) -> None:
        """Kill the kept program."""
        if self._candidate is not None:
            self._replace_candidate()

    def _ask(
        self,
        begin: Callable[[CandidateProcess], CommandReply | None],
        commands: Sequence[Command],
        *,
        keep: bool,
    ) -> list[CommandReply]:
        assert self._candidate is not None
        try:
            first = begin(self._candidate)
            replies = [*([] if first is None else [first]), *self._candidate.obey(commands)]
        except OSError as error:
            has_program = self._candidate is not None and self._candidate.has_program
            self.close()
            lost = LostUnderProgram if has_program and not self.is_trusted else SandboxLost
            place = "under" if has_program else "before"
            raise lost(f"the sandbox was lost {place} a program: {error}") from error
        except Unconfined as error:
            self.close()
            raise SandboxUnavailable(f"the sandbox refused to run a program: {error}") from error
        except Interrupted:
            self._replace_candidate()
            raise
        if not keep:
            self._replace_candidate()
        return replies

    def _replace_candidate(self) -> None:
        """End the program and request the next candidate. If the sandbox is lost meanwhile, close
        it; the replies received so far stay valid."""
        try:
            self._next_candidate()
        except OSError:
            self.close()

    def _next_candidate(self) -> CandidateProcess:
        """End the candidate and request the next one, which waits for a program, confined."""
        assert self._process is not None
        if self._candidate is not None:
            self._candidate.end()
            self._candidate = None
        self._num_candidates += 1
        self._candidate = CandidateProcess(
            self._process.stream, self._num_candidates, self.interrupt, self._process.is_stopped
        )
        return self._candidate

    def _start(self) -> None:
        self.num_starts += 1
        try:
            self._process = start_walled(
                lambda socket_fd, users: command(self.isolation, socket_fd, self.limits, users),
                self.isolation,
                env=ENVIRONMENT if self.isolation is Isolation.LANDLOCK else {},
                limit_s=START_S,
                interrupt=self.interrupt,
            )
        except NotStarted as error:
            raise SandboxUnavailable(f"the sandbox {error}") from error
        self._process.stream.settimeout(GRACE_S)
        self._num_candidates = 0
        try:
            self._next_candidate()
        except OSError as error:
            self.close()
            raise SandboxLost(f"the sandbox was lost before its first program: {error}") from error


CODE = ("tasks/rewards/programs/sandbox", "tasks/isolation", "artifacts/datasets/plain_values.py")
ENTRY = (
    "import sys; sys.path.insert(0, {root!r}); from tasks.rewards.programs.sandbox.fork_server"
    " import main; main()"
)
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}  # the sandbox's whole environment


def command(
    isolation: Isolation, socket_fd: int, limits: SandboxLimits, users: UserMap | None
) -> list[str]:
    """Command line of a fork server that communicates over the socket `socket_fd`. Raises
    FileNotFoundError if bubblewrap is needed and missing."""
    nice = ["nice", "-n", str(limits.niceness)] if limits.niceness else []
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c"]
    memory, tmp = str(limits.memory_bytes), str(limits.tmp_bytes)
    if isolation is Isolation.LANDLOCK:
        whole = dict.fromkeys(map(os.path.realpath, interpreter_paths()))
        readable = [part for path in whole for part in without_packages(path)]
        arguments = [str(socket_fd), memory, "0", *readable, str(ROOT / CODE[0])]
        return [*nice, *python, ENTRY.format(root=str(ROOT)), *arguments]
    view = View(paths=interpreter_paths(), code=CODE)
    confined = [*walls(users, view), *variables(ENVIRONMENT)]
    arguments = [str(socket_fd), memory, tmp]
    return [*nice, *confined, *python, ENTRY.format(root=INSIDE), *arguments]
