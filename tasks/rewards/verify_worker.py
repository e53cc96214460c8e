"""One killable process that runs a scorer function on model text, with a hard limit per call.

    call -> (start) -> frame -> worker -> frame -> WorkerReply
    past the limit: SIGKILL to the worker's process group, a fresh worker for the next call

By default the limit counts the worker's processor time, whatever else the machine does; a call
beyond it is a "timeout". A worker that makes no progress, is stopped by a signal, or is killed once
is "lost", which is no fault of the text; so is a call beyond a limit by the wall clock. If two
workers are killed over the same text while a third one lives, the text is at fault: "killed".

Symbolic mathematics hangs inside C code, where neither threads nor signals reach it. The worker is
no sandbox: it runs trusted code (math-verify, the user's own reward) on untrusted text.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import psutil  # type: ignore[import-untyped]

from artifacts.records import Outcome
from tasks.cluster.deaths import manner
from tasks.isolation.child_process import ChildProcess, start_child
from tasks.isolation.frames import Json, receive_frame, send_frame
from tasks.isolation.interpreter import own
from tasks.isolation.interrupt import Interrupted
from tasks.rewards.base import RewardUnavailable, ScorerProcess, Verdict, infra, wrong

DEFAULT_MEMORY_BYTES = 2 << 30
START_TIMEOUT_S = 60.0
RECYCLE_CALLS = 1_000
SETTLED_CALLS = 10  # first calls, whose growth in memory is lazy loading and no leak
STANDSTILL_S = 30.0  # wall time beyond the limit after which a worker counts as stalled
WATCH_S = 0.5  # between two checks of a worker that does not reply
FINISH_S = 0.5  # for a call that was interrupted: most end soon, and a fresh worker costs seconds
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
RETRIED_KINDS = ("died", "lost", "killed")
Clock = Literal["processor", "wall"]  # the time that a limit counts
ENDED_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class WorkerStartError(RewardUnavailable):
    """Raised when a worker cannot start or cannot load its scorer: never the model's fault."""


class WorkerSlow(WorkerStartError):
    """Raised when a worker does not load its scorer within `start_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """The result of a call, or how it ended without one."""

    kind: Literal["value", "raised", "timeout", "memory", "died", "killed", "lost"]
    value: Json = None  # what the scorer returned; None for the other kinds
    detail: str = ""  # the exception of "raised", or how the worker ended or stalled


def without_value(reply: WorkerReply) -> Verdict:
    """Verdict for a trusted scorer's call without a value: the text's fault, or INFRA if lost."""
    match reply.kind:
        case "timeout":
            return Verdict(reward=0.0, outcome=Outcome.TIMEOUT, detail="verify_timeout")
        case "memory" | "killed":
            return wrong(f"verify_{reply.kind}")
        case "lost":
            return infra(f"the verify worker was lost: {reply.detail}")
        case _:
            return wrong("verify_crash")


@dataclass(eq=False)
class VerifyWorker(ScorerProcess):
    """Runs a scorer function in a process of its own, for one caller; starts with the first
    call."""

    scorer: str  # "module:function" or "file.py:function"
    _: KW_ONLY
    timeout_s: float  # limit of a call
    clock: Clock = "processor"
    memory_bytes: int = DEFAULT_MEMORY_BYTES  # address space of the process
    # calls after which the process is replaced, because libraries leak memory on model text
    recycle_calls: int = RECYCLE_CALLS
    # replace it then only if it has grown by half of the memory that was free after the first calls
    stays: bool = False
    start_s: float = START_TIMEOUT_S  # limit of the process's start
    # names of variables that the process gets beside those of every interpreter
    environment: Sequence[str] = ()
    # arguments of throw-away first calls, so that lazy imports and caches count to the start and
    # not to a response's limit
    rehearsals: Sequence[tuple[Json, ...]] = ()

    def __post_init__(self) -> None:
        super().__init__()
        self.num_starts = 0
        self._settled_bytes = 0  # address space after the first calls
        self._process: ChildProcess | None = None
        self._num_calls = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, None before the first call and after a kill."""
        return self._process.popen.pid if self._process else None

    def warm(self) -> None:
        """Start a worker process unless a usable one runs. Raises WorkerStartError."""
        if self._process and (self._process.popen.poll() is not None or self._is_spent()):
            self.close()
        if self._process is None:
            self._start()

    def call(self, *arguments: Json, limit_s: float | None = None) -> WorkerReply:
        """Call the scorer with a time limit, `timeout_s` by default. The start of a process does
        not count.

        If the worker dies or is lost, the call is repeated once in a new one. If two workers were
        killed, a third must be able to start. Raises WorkerStartError if a worker cannot start, and
        Interrupted soon after the interrupt is set.
        """
        replies: list[WorkerReply] = []
        while not replies or (len(replies) == 1 and replies[0].kind in RETRIED_KINDS):
            self.warm()
            self._num_calls += 1
            replies.append(self._ask(arguments, limit_s or self.timeout_s, self.clock))
        last = replies[-1]
        if last.kind != "killed":
            return last
        if replies[0].kind != "killed":
            return replace(last, kind="lost")
        self.warm()  # raises if a worker cannot live even without these arguments
        return last

    def close(self) -> None:
        """Kill the worker and all processes that it started; does nothing without a worker."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()

    def _is_spent(self) -> bool:
        """True if the running worker is to be replaced before the next call."""
        if self.stays and self._num_calls <= SETTLED_CALLS:
            self._settled_bytes = self._held_bytes()
        if self._num_calls < self.recycle_calls:
            return False
        left_bytes = self.memory_bytes - self._settled_bytes
        return not self.stays or self._held_bytes() - self._settled_bytes > left_bytes / 2

    def _held_bytes(self) -> int:
        assert self._process is not None
        try:
            return int(psutil.Process(self._process.popen.pid).memory_info().vms)
        except psutil.Error:  # it has just ended: the call finds out
            return 0

    def _start(self) -> None:
        """Start a process, await its greeting, rehearse. Raises WorkerStartError."""
        interpreter = [sys.executable, "-P", "-m", "tasks.rewards.verify_process"]
        limits = [self.scorer, str(self.memory_bytes), *self.environment]
        try:
            process = start_child(
                lambda socket_fd: [*interpreter, str(socket_fd), *limits],
                env=_environment(self.environment),
            )
        except OSError as error:
            raise WorkerStartError(
                f"the verify worker of {self.scorer} could not be started: {error}"
            ) from error
        self._process = process
        self._num_calls = 0
        self.num_starts += 1
        kind = WorkerStartError
        try:
            deadline_s = time.monotonic() + self.start_s
            self.interrupt.wait(process.stream.fileno(), self.start_s)
            greeting = receive_frame(process.stream, deadline_s)
            problem = str(greeting.get("unavailable", ""))
        except Interrupted:
            self.close()
            raise
        except TimeoutError:
            problem, kind = f"not ready after {self.start_s:g} s", WorkerSlow
        except OSError:
            problem = f"{_cause_of_death(process.popen).detail} before it was ready"
        for rehearsal in self.rehearsals:
            if problem:
                break
            reply = self._ask(rehearsal, START_TIMEOUT_S, "wall")
            if reply.kind != "value":
                problem = f"its first call ended with {reply.kind} {reply.detail}"
        if problem:
            self.close()
            raise kind(f"the verify worker of {self.scorer} did not start: {problem}")

    def _ask(self, arguments: tuple[Json, ...], limit_s: float, clock: Clock) -> WorkerReply:
        """Call the running worker; kill it unless it returns a value or an exception."""
        assert self._process is not None
        process = self._process
        latest_s = time.monotonic() + limit_s + STANDSTILL_S
        try:
            computed_s = _computed_s(process)
            send_frame(process.stream, {"arguments": arguments, "limit_s": limit_s}, latest_s)
            reply = self._watch(process, limit_s, computed_s if clock == "processor" else None)
            if reply is None:
                frame = receive_frame(process.stream, latest_s + STANDSTILL_S)
                if "raised" in frame:
                    reply = WorkerReply(kind="raised", detail=str(frame["raised"]))
                elif "memory" in frame:
                    reply = WorkerReply(kind="memory", detail="out of memory")
                else:
                    reply = WorkerReply(kind="value", value=frame.get("value"))
        except Interrupted:
            self.close()
            raise
        except TimeoutError:
            reply = WorkerReply(kind="lost", detail="it takes and gives no frames")
        except OSError:
            reply = _cause_of_death(process.popen)
        if reply.kind not in ("value", "raised"):
            self.close()
        return reply

    def _watch(
        self, process: ChildProcess, limit_s: float, computed_s: float | None
    ) -> WorkerReply | None:
        """Wait until a reply can be read (None), or return how the call ended without one.
        `computed_s`: processor time of the worker before the call, None for a limit by the wall
        clock."""
        started_s = time.monotonic()
        left_s = limit_s
        while not self._is_ready(process, min(WATCH_S, max(0.01, left_s))):
            elapsed_s = time.monotonic() - started_s
            if process.is_stopped():
                return WorkerReply(kind="lost", detail="it was stopped by a signal")
            if elapsed_s > limit_s + (0.0 if computed_s is None else STANDSTILL_S):
                return WorkerReply(kind="lost", detail=f"no reply after {elapsed_s:.3g} s")
            taken_s = elapsed_s if computed_s is None else _computed_s(process) - computed_s
            left_s = limit_s - taken_s
            if left_s <= 0:
                return WorkerReply(kind="timeout", detail=f"killed after {limit_s:g} s")
        return None

    def _is_ready(self, process: ChildProcess, limit_s: float) -> bool:
        """Wait up to `limit_s` for a reply; True if it can be read. After an interrupt, waits
        FINISH_S more and then raises Interrupted."""
        descriptor = process.stream.fileno()
        try:
            return self.interrupt.wait(descriptor, limit_s)
        except Interrupted:
            last = select.poll()
            last.register(descriptor, select.POLLIN)
            if not last.poll(1000 * FINISH_S):
                raise
            return True


def _computed_s(process: ChildProcess) -> float:
    """Processor seconds of a process, over all its threads; OSError if it has ended."""
    clock = (~process.popen.pid << 3) | 2  # another process's, as clock_getcpuclockid(3) names it
    return time.clock_gettime(clock)


def _environment(named: Sequence[str]) -> dict[str, str]:
    """KEPT_VARIABLES, the named ones, the import path, single-threaded numerics; nothing else."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    search_path = os.pathsep.join(dict.fromkeys(own().search_path))
    kept = {name: os.environ[name] for name in (*KEPT_VARIABLES, *named) if name in os.environ}
    return {**single, **kept, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"}


def _cause_of_death(popen: subprocess.Popen[bytes]) -> WorkerReply:
    """Reply that describes how a worker ended that has closed its end of the socket."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(timeout=1.0)
    code = popen.poll()
    if code is None:
        return WorkerReply(kind="died", detail="unreadable reply")
    if code == -signal.SIGXCPU:
        return WorkerReply(kind="timeout", detail="out of CPU time")
    if code == -signal.SIGKILL:
        return WorkerReply(kind="killed", detail=manner(code))
    return WorkerReply(kind="lost" if -code in ENDED_FROM_OUTSIDE else "died", detail=manner(code))
