"""The umask of a run's processes: files and folders that they make are readable by their user
alone, as ssh's are. A folder with a default ACL (`setfacl -d`) has its own rule, and an existing
folder keeps its mode.

Leaves out files that a command writes where the user names them, such as a plot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = 0o077  # what the umask takes away: all of group and others

_given = -1  # the user's own umask, where this process has replaced it


def keep_private() -> None:
    """Have this process and its children make files, from now on, that no other user can read."""
    global _given
    before = os.umask(PRIVATE)
    _given = before if _given < 0 else _given


@contextmanager
def private_files() -> Iterator[None]:
    """`keep_private` for the length of a block, or of each call of the decorated function."""
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
    """The umask that the user gave this process, for a child that shall have the same; -1 if this
    process still has it."""
    return _given


@contextmanager
def users_own_files() -> Iterator[None]:
    """Have files of the block made with the user's own umask: in a cache, which users may share."""
    before = os.umask(PRIVATE)
    os.umask(before if _given < 0 else _given)
    try:
        yield
    finally:
        os.umask(before)
