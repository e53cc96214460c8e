"""The two users of a sandbox that root starts: root for its set-up, nobody for the programs.

    bubblewrap == its process ==> host --writes the map--> its namespace
    host == go on ==> bubblewrap

Without a map, programs would be the machine's root under another name. The set-up itself runs as
root: directories on the way to the interpreter may be closed to everybody else. For a run of any
other user bubblewrap maps that user alone.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tasks.isolation.confinement import NOBODY
from tasks.isolation.interrupt import Interrupt

DENIED = "root's programs could not become nobody; give the run CAP_SETUID, CAP_SETGID, CAP_SETFCAP"
MAP = f"0 0 1\n{NOBODY} {NOBODY} 1\n"  # inside, outside, how many


def is_needed(uid: int, own_map: str) -> bool:
    """True if the user of this run is the machine's root. own_map: the kernel's uid_map of this
    process; a root in a user namespace of a single user is that other user outside."""
    _, outside, *counts = own_map.split()
    is_other_user = counts == ["1"] and outside != "0"
    return uid == 0 and not is_other_user


class UserMap:
    """Two pipes to one bubblewrap: it reports its process, and waits for the user map."""

    def __init__(self) -> None:
        """Open the pipes. Raises OSError if no descriptors are left."""
        self._told, self._tell = os.pipe()
        self._wait, self._go_on = os.pipe()

    def __enter__(self) -> UserMap:
        return self

    def __exit__(self, *failure: object) -> None:
        self._close(self._told, self._tell, self._wait, self._go_on)

    @property
    def arguments(self) -> list[str]:
        """Arguments of bubblewrap: the pipes where it reports its process and where it waits."""
        return ["--info-fd", str(self._tell), "--userns-block-fd", str(self._wait)]

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that bubblewrap inherits."""
        return self._tell, self._wait

    def grant(self, hangs_up: int, limit_s: float, interrupt: Interrupt) -> None:
        """Write the map for the started bubblewrap and let it go on as both users.

        If bubblewrap has ended, or its other descriptor `hangs_up` here, nothing is done: it
        reports its own error. Raises PermissionError if the run may not give the users,
        TimeoutError after limit_s, and Interrupted once `interrupt` is set.
        """
        self._close(self._tell, self._wait)
        self._tell = self._wait = -1
        told = self._read(hangs_up, time.monotonic() + limit_s, interrupt)
        try:
            process = int(json.loads(told)["child-pid"])
        except (ValueError, KeyError):  # it ended before its report was complete
            return
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{process}/{name}").write_text(MAP)
            os.write(self._go_on, b"x")
        except (FileNotFoundError, ProcessLookupError, BrokenPipeError):
            return
        except OSError as error:
            raise PermissionError(f"{DENIED}, or another user: {error}") from error

    def _read(self, hangs_up: int, deadline_s: float, interrupt: Interrupt) -> bytes:
        told = b""
        while ready := interrupt.wait_any((self._told, hangs_up), deadline_s - time.monotonic()):
            chunk = os.read(self._told, 4096) if self._told in ready else b""
            if not chunk:
                return told
            told += chunk
        raise TimeoutError("bubblewrap did not tell its process")

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
