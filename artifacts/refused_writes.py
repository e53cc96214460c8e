"""Writes that are refused, as one sentence for the user: which file, why, and what to do.

A full disk says so without a path, safetensors in words alone, an object store in words of its
protocol's packages.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from artifacts.urls import without_secrets

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY_ERRNOS = (errno.EROFS, errno.EACCES, errno.EPERM)


class StoreError(OSError):
    """A place cannot take a write; the message is one sentence with the path and the cure."""


@contextmanager
def explained(where: str, num_bytes: int, setting: str = "artifact_root") -> Iterator[None]:
    """The boundary where the errors of a write, the operating system's and a protocol's own, become
    a StoreError. `setting`: says where such files go. FileExistsError stays what it is."""
    try:
        yield
    except FileExistsError:
        raise
    except Exception as error:
        if "://" not in where and not isinstance(error, OSError | SafetensorError):
            raise
        sentence = _sentence(error, where, num_bytes, setting)
        if sentence is None:
            raise
        raise StoreError(*filter(None, (_number(error), sentence))) from error


def reason_of(error: Exception) -> str:
    """What an error says, without secrets, or its kind where it says nothing."""
    return without_secrets(getattr(error, "strerror", None) or str(error)) or type(error).__name__


def _number(error: Exception) -> int | None:
    """The operating system's, which safetensors has in its words."""
    if isinstance(error, SafetensorError):
        told = re.search(r"\(os error (\d+)\)", str(error))
        return int(told[1]) if told else None
    return getattr(error, "errno", None)


def _sentence(error: Exception, where: str, num_bytes: int, setting: str) -> str | None:
    """What a failed write means; None where the error says it itself."""
    number = _number(error)
    if number in FULL_ERRNOS:
        return (
            f"disk full: {where} needs {num_bytes} bytes; free space or set {setting} to"
            " another disk, then resume the run"
        )
    if number in READ_ONLY_ERRNOS or isinstance(error, PermissionError):
        return (
            f"cannot write {where}: {reason_of(error)}; make the directory writable or set"
            f" {setting} elsewhere"
        )
    if number == errno.ENOTDIR:
        return f"cannot write {where}: a part of the path is a file; set {setting} to a directory"
    if getattr(error, "filename", None) is not None:
        return None
    cure = "the bucket, the credentials and the endpoint" if "://" in where else "the disk"
    return (
        f"cannot write {where}: {reason_of(error)}; check {cure}, or set {setting} elsewhere,"
        " then resume the run"
    )
