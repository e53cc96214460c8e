"""The umask of a run's processes: only their user can read the files and folders that they make. A
folder with a default ACL (`setfacl -d`) follows that ACL, and an existing folder keeps its mode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = 0o077  # the umask: removes all permissions of group and others

_given = -1  # the user's own umask, where this process has replaced it


def keep_private() -> None:
    """Set the umask of this process and its future children: no other user can read new files."""
    global _given
    before = os.umask(PRIVATE)
    _given = before if _given < 0 else _given


@contextmanager
def private_files() -> Iterator[None]:
    """Apply `keep_private` during a block, or during each call of the decorated function."""
    global _given
    given = _given
    before = os.umask(PRIVATE)
    _given = before if given < 0 else given
    try:
        yield
    finally:
        os.umask(before)
        _given = given


def users_umask() -> int:
    """The user's umask from before `keep_private`, for a child process that shall have it; -1 if
    this process never replaced its umask."""
    return _given


@contextmanager
def users_own_files() -> Iterator[None]:
    """Restore the user's own umask during the block: for a cache, which users may share."""
    before = os.umask(PRIVATE)
    os.umask(before if _given < 0 else _given)
    try:
        yield
    finally:
        os.umask(before)
