"""The directory in which a run hands weights over: its own while it runs, gone when it ends, even
if it was killed.

    <parent>/rollflow-<run id>/owner.lock   held by the flow's process, released by the system
                              /host         where that is

Usually in memory, where what a killed run leaves is missing until the next reboot: a run that
begins removes what nobody owns any more. Of a folder that hosts share only what was left from here:
not every file system tells a host what another one has locked. Leaves out what lies in it
(`weights`, `checkpoint`); nothing of that is needed to resume a run.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

PREFIX = "rollflow-"
OWNER, HOST = "owner.lock", "host"


@contextmanager
def handover_directory(parent: Path, run_id: str) -> Iterator[Path]:
    """The run's directory, empty. ValueError if a process of this machine works in it: two attempts
    at one run would mix their weights."""
    parent.mkdir(parents=True, exist_ok=True)
    own = parent / f"{PREFIX}{run_id}"
    owner = FileLock(own / OWNER, timeout=0, thread_local=False)
    # one run at a time comes and clears up
    with FileLock(parent / f".rollflow-{os.getuid()}.lock"):
        _remove_what_is_left(parent, own)
        own.mkdir(exist_ok=True)
        own.chmod(stat.S_IRWXU)  # whoever made it
        try:
            owner.acquire()
            (own / HOST).write_text(socket.gethostname())
        except Timeout:
            raise ValueError(
                f"a run must go on in one process at a time, and one works in {own}; end it, or"
                " wait for its end"
            ) from None
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        owner.release()


def _remove_what_is_left(parent: Path, own: Path) -> None:
    """`own` from wherever it was left, others from here."""
    for lock in parent.glob(f"{PREFIX}*/{OWNER}"):
        if lock.parent != own and _host_of(lock.parent) != socket.gethostname():
            continue
        # somebody's, or another user's
        with suppress(Timeout, PermissionError), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent, ignore_errors=True)
            logger.info("removed=%s of a run that was killed", lock.parent)


def _host_of(folder: Path) -> str:
    """Where the run is or was that has this folder; here, if it does not say so any more."""
    with suppress(OSError):
        return (folder / HOST).read_text()
    return socket.gethostname()
