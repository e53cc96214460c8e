"""One killable process that runs a scorer function on model text, with a hard wall limit per call.

    call -> (start) -> frame -> worker -> frame -> Reply     past the limit: SIGKILL to its process group, a fresh one next time

Why a process: symbolic mathematics hangs inside C code, where neither threads nor signals reach it. Not a sandbox: it runs
trusted code (math-verify, allow-listed scorers, the user's own reward) on untrusted text.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from artifacts.records import Outcome
from tasks.rewards.base import RewardUnavailable, Verdict, wrong
from tasks.rewards.child_process import ChildProcess, start_child
from tasks.rewards.frames import Json, receive_frame, send_frame

DEFAULT_MEMORY_BYTES = 2 << 30
START_TIMEOUT_S = 60.0
RECYCLE_CALLS = 1_000


class WorkerStartError(RewardUnavailable):
    """The worker cannot start, or cannot load its scorer: never the model's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a call ended."""

    kind: Literal["value", "raised", "timeout", "memory", "died"]
    value: Json  # what the scorer returned; None for the other kinds
    detail: str  # the exception of "raised", the signal of "died"


def text_at_fault(reply: Reply) -> Verdict | None:
    """The verdict when the text broke the call: past its time (TIMEOUT) or its memory (WRONG), both 0; None otherwise."""
    if reply.kind == "timeout":
        return Verdict(reward=0.0, outcome=Outcome.TIMEOUT, detail="verify_timeout")
    return wrong("verify_memory") if reply.kind == "memory" else None


class VerifyWorker:
    """Runs `scorer` ("module:function" or "file.py:function") in a process that is started on the first call.

    `rehearsals` are arguments of throw-away first calls, so that lazy imports and caches fall into the start and not into a response's
    limit. One caller at a time.
    """

    def __init__(
        self,
        scorer: str,
        *,
        timeout_s: float,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        recycle_calls: int = RECYCLE_CALLS,
        rehearsals: Sequence[tuple[Json, ...]] = (),
    ) -> None:
        self.scorer = scorer
        self.num_starts = 0
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._recycle_calls = recycle_calls
        self._rehearsals = rehearsals
        self._process: ChildProcess | None = None
        self._num_calls = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, None before the first call and after a kill."""
        return self._process.popen.pid if self._process else None

    def warm(self) -> None:
        """Have a worker ready now; WorkerStartError if there can be none."""
        if self._process and (self._process.popen.poll() is not None or self._num_calls >= self._recycle_calls):
            self.close()
        if self._process is None:
            self._start()

    def call(self, *arguments: Json) -> Reply:
        """One call within the limit; the start is not counted. A worker that dies unasked is replaced once."""
        reply = self._call_once(arguments)
        return self._call_once(arguments) if reply.kind == "died" else reply

    def close(self) -> None:
        """Kill the worker and whatever it started; harmless without one."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()

    def _call_once(self, arguments: tuple[Json, ...]) -> Reply:
        self.warm()
        self._num_calls += 1
        return self._ask(arguments, self._timeout_s)

    def _command(self, socket_fd: int) -> list[str]:
        return [sys.executable, "-m", "tasks.rewards.worker_main", str(socket_fd), self.scorer, str(self._memory_bytes)]

    def _start(self) -> None:
        try:
            self._process = start_child(self._command, env=_environment())
        except OSError as error:
            raise WorkerStartError(f"the verify worker of {self.scorer} could not be started: {error}") from error
        self._num_calls = 0
        self.num_starts += 1
        self._await_ready(time.monotonic() + START_TIMEOUT_S)

    def _await_ready(self, deadline_s: float) -> None:
        assert self._process is not None
        try:
            greeting = receive_frame(self._process.stream, deadline_s)
            problem = str(greeting.get("unavailable", ""))
        except TimeoutError:
            problem = f"not ready after {START_TIMEOUT_S:.0f} s"
        except OSError:
            problem = "it ended before it was ready"
        for rehearsal in self._rehearsals:
            if problem:
                break
            reply = self._ask(rehearsal, START_TIMEOUT_S)
            problem = "" if reply.kind == "value" else f"its first call ended with {reply.kind} {reply.detail}"
        if problem:
            self.close()
            raise WorkerStartError(f"the verify worker of {self.scorer} did not start: {problem}")

    def _ask(self, arguments: tuple[Json, ...], limit_s: float) -> Reply:
        assert self._process is not None
        process, deadline_s = self._process, time.monotonic() + limit_s
        try:
            send_frame(process.stream, {"arguments": arguments, "limit_s": limit_s}, deadline_s)
            reply = _read_reply(receive_frame(process.stream, deadline_s))
        except TimeoutError:
            reply = Reply(kind="timeout", value=None, detail=f"killed after {limit_s:g} s")
        except OSError:
            reply = _cause_of_death(process.popen)
        if reply.kind not in ("value", "raised"):
            self.close()
        return reply


def _read_reply(frame: dict[str, Json]) -> Reply:
    if "raised" in frame:
        return Reply(kind="raised", value=None, detail=str(frame["raised"]))
    if "memory" in frame:
        return Reply(kind="memory", value=None, detail="out of memory")
    return Reply(kind="value", value=frame.get("value"), detail="")


def _cause_of_death(popen: subprocess.Popen[bytes]) -> Reply:
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(timeout=1.0)
    code = popen.poll()
    if code == -signal.SIGXCPU:
        return Reply(kind="timeout", value=None, detail="out of CPU time")
    return Reply(kind="died", value=None, detail="unreadable reply" if code is None else f"exit code {code}")


def _environment() -> dict[str, str]:
    """Only what an interpreter needs, and the parent's import path; single-threaded numerics, no secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    search_path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    return {**kept, **single, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"}
