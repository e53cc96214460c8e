"""Files to which a process only appends while an attempt at a round goes on: what outlives its
death.

    write(attempt, lines) ─▶ <folder>/<attempt>/<writer>-<id>.jsonl ─▶ read_attempts
                                                                   └─▶ drop_attempts

All lines of a call are one write, which outlives its process but not a crash of the machine; a line
that was broken off ends its file. The lines are JSON, so that reading them runs nothing. What they
say is `turn_log`'s and `token_log`'s. Each has its digest: what follows a damaged one begins again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from artifacts.digests import with_digest, without_digest

logger = logging.getLogger(__name__)

MAX_OPEN = 4  # files of attempts that a process has open; a round and an evaluation write at a time
Line = dict[str, Any]  # Any: JSON values


class AttemptLog:
    """One writer's, for its process. Belongs to one event loop."""

    def __init__(self, folder: Path, writer: str, what: str) -> None:
        """what: the lines are about, for the warning when the disk does not take them."""
        self._folder = folder
        self._name = f"{writer}-{uuid.uuid4().hex}.jsonl"
        self._what = what
        self._files: dict[int, int] = {}  # descriptors by attempt, the one opened last at the end
        self._is_broken = False

    def write(self, attempt: int, lines: Iterable[Line]) -> None:
        """Append these. A disk that does not take them ends the log, and nothing else."""
        if self._is_broken:
            return
        told = (json.dumps(line, separators=(",", ":")).encode() for line in lines)
        data = b"".join(with_digest(str(attempt), line) + b"\n" for line in told)
        try:
            os.write(self._file(attempt), data)
        except OSError as error:
            self._is_broken = True
            logger.warning(
                "%s are kept no more, those of a killed run begin again: %s", self._what, error
            )

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, attempt: int) -> int:
        if attempt not in self._files:
            while len(self._files) >= MAX_OPEN:
                os.close(self._files.pop(next(iter(self._files))))
            path = self._folder / str(attempt) / self._name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[attempt] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._files[attempt]


def read_attempts(folder: Path, is_meant: Callable[[int], bool]) -> Iterator[Iterator[Line]]:
    """The lines of each file of these attempts, file by file."""
    for attempt, directory in _directories(folder):
        if is_meant(attempt):
            for file in sorted(directory.glob("*.jsonl")):
                yield _lines(attempt, file)


def drop_attempts(folder: Path, is_over: Callable[[int], bool]) -> None:
    """Delete what was written in attempts that are over."""
    for attempt, directory in _directories(folder):
        if is_over(attempt):
            shutil.rmtree(directory, ignore_errors=True)


def _directories(folder: Path) -> Iterator[tuple[int, Path]]:
    if folder.is_dir():
        for directory in sorted(folder.iterdir()):
            if directory.name.isdigit():
                yield int(directory.name), directory


def _lines(attempt: int, file: Path) -> Iterator[Line]:
    # after the last line comes nothing, or one that was broken off
    *lines, _ = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            told: Line = json.loads(without_digest(str(attempt), line, is_needed=True))
        except ValueError as error:
            logger.warning(
                "line %d of %s is not as it was written (%s): what it and those after it say "
                " begins again",
                number,
                file,
                error,
            )
            return
        yield told
