"""Where the threads and coroutines of a process are, which it writes to its errors at a signal: a
line each, from the innermost call outwards, of the project's own ones alone."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any

ROOT = f"{Path(__file__).parents[2]}{os.sep}"
OTHERS = f"{ROOT}.venv"  # what lies there is not the project's own
SIGNAL = signal.SIGUSR2
BEGINS = "whereabouts of process"
NUM_CALLS = 5  # of the project's own, in a line


def tell_when_asked() -> None:
    """Answer the signal. A thread that does not come back from C leaves Python's own account."""
    signal.signal(SIGNAL, _tell)
    faulthandler.register(SIGNAL, chain=True)


def read_whereabouts(log: Path, process: int, num_characters: int) -> str:
    """The beginning of this process's last answer in a log; else the end of the log."""
    _, begins, told = log.read_text(errors="replace").rpartition(f"{BEGINS} {process}\n")
    return told.partition(BEGINS)[0][:num_characters] if begins else told[-num_characters:]


def _tell(_: int, __: FrameType | None) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"{BEGINS} {os.getpid()}"]
    for number, frame in sys._current_frames().items():
        lines += _line(names.get(number, "thread"), [*_callers(frame)])
    for task in list(vars(asyncio.tasks)["_all_tasks"]):
        if not task.done():
            lines += _line(task.get_name(), [*_awaited(task.get_coro())][::-1])
    os.write(2, "\n".join(lines).encode() + b"\n")


def _line(name: str, frames: list[FrameType]) -> list[str]:
    """The innermost call and the project's own ones; nothing without these."""
    frames = [frame for frame in frames if frame.f_code.co_filename != __file__]
    own = [frame for frame in frames if _is_own(frame)]
    if not own:
        return []
    told = [*([] if frames[0] is own[0] else frames[:1]), *islice(own, NUM_CALLS)]
    return [f"{name}: " + " < ".join(map(_place, told))]


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(ROOT) and not file.startswith(OTHERS)


def _place(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    short = file.removeprefix(ROOT) if _is_own(frame) else Path(file).name
    return f"{frame.f_code.co_name} {short}:{frame.f_lineno}"


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(waits: Any) -> Iterator[FrameType]:  # Any: whatever a coroutine awaits
    """The frames of a coroutine and of what it waits for, from the outermost on."""
    while isinstance(waits, CoroutineType) and waits.cr_frame is not None:
        yield waits.cr_frame
        waits = waits.cr_await
