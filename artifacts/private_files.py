"""Files and folders that a run makes are its user's alone, as ssh's are: the umask of its processes
lets nobody else in. A folder with a default ACL (`setfacl -d`) has its own rule, and a folder that
is there keeps what it has.

Leaves out files that a command writes where the user names them, such as a plot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = 0o077  # what the umask takes away: all of group and others

_given = -1  # the user's own umask, where this process has replaced it


def keep_private() -> None:
    """From now on nobody else reads what this process and its children make."""
    global _given
    before = os.umask(PRIVATE)
    _given = before if _given < 0 else _given


@contextmanager
def private_files() -> Iterator[None]:
    """The same for the length of a block, or of each call of a function that this decorates."""
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
    """What the user gave this process, for a child that is to have that; -1 if it still has it."""
    return _given


@contextmanager
def users_own_files() -> Iterator[None]:
    """Files of a block are made as the user has it: in a cache, which users may share."""
    before = os.umask(PRIVATE)
    os.umask(before if _given < 0 else _given)
    try:
        yield
    finally:
        os.umask(before)
