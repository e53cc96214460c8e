"""The directory in which a run hands weights over: its own while it runs, gone when it ends, even
if it was killed.

    <parent>/rollflow-<run id>/owner.lock   held by the flow's process, released by the system
                              /host         where that is
                              /run          where the run's records are

Usually in memory, where what a killed run leaves is missing until the next reboot: a run that
begins removes what nobody owns any more. Of a folder that hosts share only what was left from here:
not every file system tells a host what another one has locked. Where a run of the same name below
another artifact root has the directory, this one's has another name. Leaves out what lies in it
(`weights`, `checkpoint`); nothing of that is needed to resume a run.
"""

from __future__ import annotations

import hashlib
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
OWNER, HOST, RUN = "owner.lock", "host", "run"


@contextmanager
def handover_directory(parent: Path, run_id: str, records: str = "") -> Iterator[Path]:
    """The run's directory, empty. ValueError if a process of this machine works in it: two attempts
    at one run would mix their weights. records: URL of the run's folder."""
    parent.mkdir(parents=True, exist_ok=True)
    # one run at a time comes and clears up
    with FileLock(parent / f".rollflow-{os.getuid()}.lock"):
        own = _place(parent, run_id, records)
        owner = FileLock(own / OWNER, timeout=0, thread_local=False)
        _remove_what_is_left(parent, own)
        own.mkdir(exist_ok=True)
        own.chmod(stat.S_IRWXU)  # whoever made it
        try:
            owner.acquire()
            (own / HOST).write_text(socket.gethostname())
            (own / RUN).write_text(records)
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


def _place(parent: Path, run_id: str, records: str) -> Path:
    usual = parent / f"{PREFIX}{run_id}"
    with suppress(OSError):
        if (usual / RUN).read_text() != records and _is_owned(usual):
            digest = hashlib.blake2b(records.encode(), digest_size=4).hexdigest()
            return parent / f"{PREFIX}{run_id}-{digest}"
    return usual


def _is_owned(folder: Path) -> bool:
    """True also for one of another host, of which nothing is known here."""
    if _host_of(folder) != socket.gethostname():
        return True
    try:
        with FileLock(folder / OWNER, timeout=0):
            return False
    except (Timeout, PermissionError):
        return True


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
