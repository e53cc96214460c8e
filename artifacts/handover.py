"""The directory in which a run hands weights over to its engines, deleted when the run ends.

    <parent>/rollflow-<run id>/owner.lock   held by the flow's process, released by the system
                              /host         name of that process's machine
                              /run          URL of the run's records

The directory is usually in memory, which the files of a killed run would occupy until the next
reboot: a run that begins removes every directory of its machine without an owner (not every file
system shows the locks of another machine). If a run of the same name below another artifact root
owns the directory, this run's gets another name.
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
    """Make the run's directory, empty, and delete it after the block. records: URL of the run's
    folder. Raises ValueError if another process of this machine owns the directory: two attempts at
    one run would mix their weights."""
    parent.mkdir(parents=True, exist_ok=True)
    # one run at a time makes its directory and removes orphans
    with FileLock(parent / f".rollflow-{os.getuid()}.lock"):
        own = _own_directory(parent, run_id, records)
        owner = FileLock(own / OWNER, timeout=0, thread_local=False)
        _remove_orphans(parent, own)
        own.mkdir(exist_ok=True)
        own.chmod(stat.S_IRWXU)  # also if the directory existed with another mode
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


def orphans(parent: Path) -> Iterator[Path]:
    """The directories of this machine's runs that were killed."""
    locks = parent.glob(f"{PREFIX}*/{OWNER}")
    return (lock.parent for lock in locks if not _is_owned(lock.parent))


def _own_directory(parent: Path, run_id: str, records: str) -> Path:
    usual = parent / f"{PREFIX}{run_id}"
    with suppress(OSError):
        if (usual / RUN).read_text() != records and _is_owned(usual):
            digest = hashlib.blake2b(records.encode(), digest_size=4).hexdigest()
            return parent / f"{PREFIX}{run_id}-{digest}"
    return usual


def _is_owned(folder: Path) -> bool:
    """True if a process holds the folder's lock, or if that cannot be seen from this machine."""
    if _host_of(folder) != socket.gethostname():
        return True
    try:
        with FileLock(folder / OWNER, timeout=0):
            return False
    except (Timeout, PermissionError):
        return True


def _remove_orphans(parent: Path, own: Path) -> None:
    """Remove directories without an owner: `own`, and those that this machine made."""
    for lock in parent.glob(f"{PREFIX}*/{OWNER}"):
        if lock.parent != own and _host_of(lock.parent) != socket.gethostname():
            continue
        # one with an owner, or another user's, stays
        with suppress(Timeout, PermissionError), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent, ignore_errors=True)
            logger.info("removed=%s of a run that was killed", lock.parent)


def _host_of(folder: Path) -> str:
    """Name of the machine whose run made this folder; this machine's if the folder has none."""
    with suppress(OSError):
        return (folder / HOST).read_text()
    return socket.gethostname()
