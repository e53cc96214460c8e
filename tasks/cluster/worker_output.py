"""What a worker process writes: passed on to the streams of the process that started it, its last
lines kept.

    worker's stdout, stderr ──▶ a named pipe each ──▶ a thread beside the nanny
        ──▶ own stdout, stderr
        └──▶ the last lines

The pipes outlive the worker: what it wrote in the moment it died is still read. Leaves out how it
died.
"""

from __future__ import annotations

import faulthandler
import os
import select
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed import Worker

STREAMS = (1, 2)
NUM_KEPT = 40  # lines; a report of faulthandler with its stack is shorter
LINE_BYTES = 300
CHUNK_BYTES = 65_536


class WorkerOutput:
    """The two pipes of one worker, over all its restarts.

    Only the thread passes on what it hears, and never under the lock: a terminal that is paused
    keeps it waiting, and nobody else.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.paths = {stream: str(directory / f"{name}.{stream}") for stream in STREAMS}
        self._pipes: dict[int, int] = {}
        self._begun: dict[int, bytes] = dict.fromkeys(STREAMS, b"")
        self._lines: deque[bytes] = deque(maxlen=NUM_KEPT)
        self._heard: deque[tuple[int, bytes]] = deque()  # by stream, still to be passed on
        self._lock = threading.Lock()
        self._closing = False

    def open(self) -> None:
        """Make the pipes and listen; before the worker starts."""
        self._bell = os.eventfd(0)
        for stream, path in self.paths.items():
            os.mkfifo(path)
            self._pipes[stream] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        threading.Thread(target=self._listen, name="worker-output", daemon=True).start()

    def last_lines(self) -> tuple[str, ...]:
        """What is left in the pipes included."""
        with self._lock:
            self._hear()
            self._ring()
            lines = (*self._lines, *self._begun.values())
        return tuple(line.decode(errors="replace") for line in lines if line)

    def forget(self) -> None:
        """A new process begins: drop the lines of the one before."""
        with self._lock:
            self._lines.clear()
            self._begun = dict.fromkeys(STREAMS, b"")

    def close(self) -> None:
        """End the thread, which passes on what is left and closes the pipes. May be called
        twice."""
        with self._lock:
            self._closing = True
            self._ring()

    def _ring(self) -> None:
        """Wake the thread, unless it has ended."""
        if self._pipes:
            os.eventfd_write(self._bell, 1)

    def _listen(self) -> None:
        sources = select.poll()
        for source in (self._bell, *self._pipes.values()):
            sources.register(source, select.POLLIN)
        ends = False
        while not ends:
            if self._bell in dict(sources.poll()):
                os.eventfd_read(self._bell)
            with self._lock:
                self._hear()
                heard, ends = tuple(self._heard), self._closing
                self._heard.clear()
            for stream, text in heard:
                _pass_on(stream, text)
        with self._lock:
            for source in (self._bell, *self._pipes.values()):
                os.close(source)
            self._pipes.clear()

    def _hear(self) -> None:
        """Read what there is and keep it, under the lock."""
        for stream in STREAMS:
            text = self._read(stream)
            *whole, begun = (self._begun[stream] + text).split(b"\n")
            self._lines.extend(line[:LINE_BYTES] for line in whole)
            self._begun[stream] = begun[:LINE_BYTES]
            self._heard.append((stream, text))

    def _read(self, stream: int) -> bytes:
        if stream not in self._pipes:
            return b""
        try:
            return os.read(self._pipes[stream], CHUNK_BYTES)
        except BlockingIOError:
            return b""


def _pass_on(stream: int, text: bytes) -> None:
    """Write it to our own stream. Where that is impossible (a reader that went away, a full disk)
    it is dropped: a worker whose pipe nobody reads would stand still at its next line."""
    with suppress(OSError):
        while text:
            try:
                text = text[os.write(stream, text) :]
            except BlockingIOError:
                select.select([], [stream], [])


class HeardWorker(Worker):  # type: ignore[misc]  # Dask is not typed
    """A worker whose output goes to the pipes; a signal that ends it leaves the stack of the thread
    it struck there."""

    def __init__(
        self, *args: Any, output: Mapping[int, str], **options: Any
    ) -> None:  # Any: Dask's options
        for stream, path in output.items():
            os.dup2(os.open(path, os.O_WRONLY), stream)
        faulthandler.enable(all_threads=False)
        super().__init__(*args, **options)
