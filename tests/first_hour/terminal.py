"""A terminal of 80 columns in which a test types commands as a newcomer would."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pexpect

SIZE = (24, 80)
ENDS_S = 60.0  # a program may take so long to end after Ctrl-C
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A command that has ended."""

    status: int  # exit status
    text: str  # all that it wrote, without colours and movements of the cursor


class Shell:
    """Commands in one folder, each in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        """folder: a clone, whose environment is as activated."""
        self.folder = folder
        self.typed: list[str] = []  # every command so far
        # a newcomer's environment: nothing of a test's, and no login anywhere
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        self._environment = kept | {
            "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "HF_HUB_OFFLINE": "1",
        }

    def spawn(self, command: str, timeout_s: float) -> pexpect.spawn:
        self.typed.append(command)
        return pexpect.spawn(
            "/bin/bash",
            ["-c", command],
            cwd=str(self.folder),
            env=self._environment,
            dimensions=SIZE,
            timeout=timeout_s,
            encoding="utf-8",
        )

    def type(self, command: str, timeout_s: float = 120) -> Typed:
        """Run a command to its end. Fails if it does not end in time, or asks a question."""
        child = self.spawn(command, timeout_s)
        try:
            child.expect(pexpect.EOF)
        except pexpect.TIMEOUT:
            child.close(force=True)
            raise AssertionError(
                f"{command!r} did not end in {timeout_s:.0f} s: {plain(child.before)[-2000:]}"
            ) from None
        child.close()
        status = child.exitstatus if child.exitstatus is not None else -1
        return Typed(status=status, text=plain(child.before))

    @contextmanager
    def running(self, command: str, timeout_s: float) -> Iterator[pexpect.spawn]:
        """A command that goes on until Ctrl-C, which must end it."""
        child = self.spawn(command, timeout_s)
        try:
            yield child
            child.sendintr()
            child.expect(pexpect.EOF, timeout=ENDS_S)
        finally:
            child.close(force=True)


def plain(text: str) -> str:
    return _ESCAPES.sub("", text)
