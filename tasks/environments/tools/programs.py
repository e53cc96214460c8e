"""Programs that models ask to have run, behind the walls of the code rewards.

    step ─▶ the environment takes the turn ─▶ a program in the action? ─▶ run ─▶ its output
                                           └▶ none ─▶ the environment's own observation

The program runs in a fresh process that does not know the environment. The episode fails only if a
sandbox is lost by no fault of the program.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue

from tasks.environments.base import Crashed, EnvironmentSettings, RequestedProgram, Transition
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import CURES, Isolation, SandboxLimits
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
    """Runs several programs at a time, for threads or coroutines that wait for them."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._interrupts = [Interrupt() for _ in range(NUM_SANDBOXES)]
        self._free = LifoQueue[Sandbox]()
        for interrupt in self._interrupts:
            self._free.put(Sandbox(isolation, LIMITS, interrupt))
        self._threads = ThreadPoolExecutor(NUM_SANDBOXES, thread_name_prefix="programs")
        self._is_closed = False

    async def observe(
        self, settings: EnvironmentSettings, text: str, transition: Transition
    ) -> Transition:
        """Returns the transition; if the action `text` asks to run a program, with the program's
        output as its observation. A call that is cancelled leaves the program to its time limit.
        Raises as `run`."""
        program = settings.program_in(text)
        if program is None:
            return transition
        if self._is_closed:
            raise Crashed("this pool is closed")
        loop = asyncio.get_running_loop()
        output = await loop.run_in_executor(self._threads, self.run, program)
        return transition._replace(observation=output)

    def run(self, program: RequestedProgram) -> str:
        """Run the program; returns its output as the model reads it. Raises EnvironmentFailed if
        the sandbox fails, and ValueError, with the cure, on a machine without the isolation."""
        if reason := holds(self._isolation):
            raise ValueError(
                f"a tool that runs Python needs the isolation {str(self._isolation)!r}, this"
                f" machine does not give it: {reason}; {CURES[self._isolation]}"
            )
        if self._is_closed:
            raise Crashed("this pool is closed")
        sandbox = self._free.get()
        try:
            text = self._output(sandbox, program)
            is_long = len(text) > program.max_chars
            return text[: program.max_chars - len(CUT)] + CUT if is_long else text
        except (SandboxUnavailable, Interrupted) as error:
            raise Crashed(ascii(str(error))[1:-1]) from error
        finally:
            self._free.put(sandbox)

    def close(self) -> None:
        """End every program and sandbox; running calls fail."""
        if self._is_closed:
            return
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for interrupt in self._interrupts:
            interrupt.set()
        for sandbox in [self._free.get() for _ in self._interrupts]:
            sandbox.close()
            self._free.put(sandbox)  # interrupted for ever, for who waits for one

    def _output(self, sandbox: Sandbox, program: RequestedProgram) -> str:
        for is_last in (False, True):
            try:
                (reply,) = sandbox.start(SHELL, limit_s=program.limit_s, stdin=program.text)
            except LostUnderProgram:
                continue
            except SandboxLost:
                if is_last:
                    raise
                continue
            match reply.kind:
                case "timeout":
                    return f"It did not end within {program.limit_s:g} s."
                case "memory":
                    return NO_MEMORY
                case "value" | "exited" | "raised":
                    return TOO_MUCH if reply.stdout is None else reply.stdout.strip() or SILENT
                case _:
                    return KILLED
        return KILLED  # with its sandbox, and again with a fresh one: its own doing
