"""What a model's programs say, run behind the walls of the code rewards.

    program ─▶ a free sandbox ─▶ a process of its own ─▶ what it printed, or one sentence

Every program begins in a fresh process: nothing is left of the one before it. Whatever it does, it
ends within its limit and in a short text; only the loss of a sandbox that no program can have
caused is a failure.
"""

from __future__ import annotations

from pathlib import Path
from queue import LifoQueue

from artifacts.episodes import Ending
from tasks.environments.base import (
    EnvironmentFailed,
    EnvironmentSettings,
    RequestedProgram,
    Transition,
)
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import CURES, Isolation
from tasks.isolation.limits import SandboxLimits
from tasks.rewards.programs.sandbox.messages import CommandReply
from tasks.rewards.programs.sandbox.sandbox import (
    LostUnderProgram,
    Sandbox,
    SandboxLost,
    SandboxUnavailable,
)
from tasks.rewards.programs.sandbox.self_test import holds

NUM_SANDBOXES = 4  # programs at a time; each starts with the first program that needs it
LIMITS = SandboxLimits(memory_bytes=256 << 20, output_bytes=64 << 10)
SHELL = Path(__file__).with_name("program_shell.py").read_text()
SILENT = "It printed nothing."
TOO_MUCH = "It printed too much."
NO_MEMORY = "It ran out of memory."
KILLED = "It was ended."
CUT = " ..."


class ProgramRunner:
    """Several programs at a time, each for a thread that waits for it."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._interrupts = [Interrupt() for _ in range(NUM_SANDBOXES)]
        self._free = LifoQueue[Sandbox]()
        for interrupt in self._interrupts:
            self._free.put(Sandbox(isolation, LIMITS, interrupt))
        self._is_closed = False

    def observed(
        self, settings: EnvironmentSettings, text: str, transition: Transition
    ) -> Transition:
        """What the model reads after its action `text`: what its program says, if it has one."""
        program = settings.program_in(text)
        return transition._replace(observation=self.run(program)) if program else transition

    def run(self, program: RequestedProgram) -> str:
        """What the model reads of it. Raises EnvironmentFailed where the sandbox fails, and
        ValueError, with the cure, on a machine that has none."""
        if reason := holds(self._isolation):
            raise ValueError(
                f"a tool that runs Python needs the isolation {str(self._isolation)!r}, this"
                f" machine does not give it: {reason}; {CURES[self._isolation]}"
            )
        if self._is_closed:
            raise EnvironmentFailed(Ending.CRASHED, "these hosts are closed")
        sandbox = self._free.get()
        try:
            return _shortened(self._said(sandbox, program), program.max_chars)
        except (SandboxUnavailable, Interrupted) as error:
            raise EnvironmentFailed(Ending.CRASHED, ascii(str(error))[1:-1]) from error
        finally:
            self._free.put(sandbox)

    def close(self) -> None:
        """End every program and sandbox; what runs fails."""
        if self._is_closed:
            return
        self._is_closed = True
        for interrupt in self._interrupts:
            interrupt.set()
        for sandbox in [self._free.get() for _ in self._interrupts]:
            sandbox.close()
            self._free.put(sandbox)  # interrupted for ever, for who waits for one

    def _said(self, sandbox: Sandbox, program: RequestedProgram) -> str:
        for is_last in (False, True):
            try:
                (reply,) = sandbox.start(SHELL, limit_s=program.limit_s, stdin=program.text)
                return _words(reply, program.limit_s)
            except LostUnderProgram:
                continue
            except SandboxLost:
                if is_last:
                    raise
        return KILLED  # with its sandbox, and again with a fresh one: its own doing


def _words(reply: CommandReply, limit_s: float) -> str:
    """What came of a program, as the model is told."""
    match reply.kind:
        case "timeout":
            return f"It did not end within {limit_s:g} s."
        case "memory":
            return NO_MEMORY
        case "value" | "exited" | "raised":
            if reply.stdout is None:
                return TOO_MUCH
            return reply.stdout.strip() or SILENT
        case _:
            return KILLED


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - len(CUT)] + CUT
