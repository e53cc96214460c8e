"""The store of a run's data: a directory tree behind fsspec, local by default, memory:// and s3://
by URL.

Every write is all or nothing. On a local disk the bytes go to a hidden name in the same directory,
are synced and renamed; an object appears in an object store only when its upload is complete. A
refused write becomes one sentence for the user: the file, the reason and the cure, which the
original errors often lack. Leaves out locking: a run has one writer per name.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from safetensors import SafetensorError

from artifacts.digests import with_digest, without_digest
from artifacts.layout import ASIDE_PREFIX, MANIFEST, part_file
from artifacts.urls import STORAGE, without_secrets

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY_ERRNOS = (errno.EROFS, errno.EACCES, errno.EPERM)


class StoreError(OSError):
    """Raised for a refused write; the message is one sentence with the path and the cure."""


@contextmanager
def explained(where: str, num_bytes: int, setting: str = "artifact_root") -> Iterator[None]:
    """Turn errors of a write, the operating system's and a protocol's own, into a StoreError.
    `setting`: name of the setting that moves such files elsewhere. FileExistsError passes."""
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
    """The text of an error without secrets, or the name of its type if it has no text."""
    return without_secrets(getattr(error, "strerror", None) or str(error)) or type(error).__name__


def _number(error: Exception) -> int | None:
    """The operating system's error number; for safetensors, parsed from the error's text."""
    if isinstance(error, SafetensorError):
        found = re.search(r"\(os error (\d+)\)", str(error))
        return int(found[1]) if found else None
    return getattr(error, "errno", None)


def _sentence(error: Exception, where: str, num_bytes: int, setting: str) -> str | None:
    """Cause and cure of a failed write; None if the error names its file itself."""
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


T = TypeVar("T")
Fill = Callable[[BinaryIO], object]  # writes the bytes of a file
RESTORE = "restore it from a copy"  # the cure of a damaged record that nothing else has


class Store:
    """A tree of files named by relative paths with forward slashes."""

    def __init__(self, filesystem: Any, root: str, url: str) -> None:  # Any: fsspec ships no types
        self._fs = filesystem
        self._root = root.rstrip("/")
        self.url = url.rstrip("/")
        self.is_local = "file" in _protocols(filesystem)
        self.needs_digests = False  # of every record; earlier versions kept none
        self._run_root: str | None = None  # of a run that has begun

    @classmethod
    def open(cls, url: str, **storage_options: object) -> Self:
        """Open a store at an fsspec URL or local path. Raises ValueError for a URL that holds a
        secret and for a protocol that is unknown or not installed."""
        from fsspec.core import url_to_fs  # here, because most errors of a command come before

        STORAGE.check(url, "artifact_root")
        try:
            # other processes write here, too
            filesystem, root = url_to_fs(url, use_listings_cache=False, **storage_options)
        except (ImportError, ValueError) as error:
            cure = "use a local directory, or install the protocol's package (pip install -e .[s3])"
            raise ValueError(
                f"artifact_root must be a URL that fsspec can open, got {url!r} ({error}); {cure}"
            ) from error
        return cls(filesystem, root, root if "file" in _protocols(filesystem) else url)

    def child(self, name: str) -> Store:
        """The store of a subtree, for example of one run."""
        child = Store(self._fs, self._full(name), f"{self.url}/{name}")
        child.needs_digests, child._run_root = self.needs_digests, self._run_root
        return child

    def requiring_digests(self) -> Store:
        """The same store, but a record without a digest counts as damaged."""
        strict = self.child("")
        strict.needs_digests = True
        return strict

    def of_begun_run(self) -> Store:
        """The same store, marked as the folder of a run that has begun: on a local disk, writes and
        failed reads raise StoreError (`check_run`) once the run's manifest is gone."""
        begun = self.child("")
        begun._run_root = self._root if self.is_local else None
        return begun

    def local_path(self, path: str) -> Path:
        """The absolute path of a file or folder of the store on this machine. Raises ValueError for
        a remote store."""
        if not self.is_local:
            raise ValueError(
                f"{path} must lie on a local disk, but the artifact root is {self.url}; use a local"
                " artifact_root"
            )
        return Path(self._full(path))

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file at `path`, atomically and durably. Raises StoreError."""
        with self._explained(path, len(data)):
            if self.is_local:
                self._replace(path, lambda file: file.write(data))
            else:
                self._fs.pipe_file(self._full(path), data)

    def create(self, path: str, data: bytes) -> None:
        """Like `write`, but raises FileExistsError if `path` exists: of two writers exactly one
        succeeds."""
        with self._explained(path, len(data)):
            if self.is_local:
                with self._written_aside(path, lambda file: file.write(data)) as aside:
                    os.link(aside, self._full(path))
                _sync_directory(Path(self._full(path)).parent)
            else:
                self._fs.pipe_file(self._full(path), data, mode="create")

    def keep(self, path: str, data: bytes) -> None:
        """`write` a record together with its digest."""
        self.write(path, with_digest(path, data))

    def keep_part(self, folder: str, step: int, number: int, data: bytes) -> int:
        """`create` a record with its digest as a part of a step: the first from `number` on that no
        other writer took. Returns the part's number."""
        while True:
            path = part_file(folder, step, number)
            try:
                self.create(path, with_digest(path, data))
            except FileExistsError:
                number += 1
                continue
            return number

    def read(self, path: str) -> bytes:
        """Read the whole file. Raises FileNotFoundError."""
        file = self._full(path)
        with self._reached():
            return bytes(self._fs.cat_file(file))

    def read_if_there(self, path: str) -> bytes | None:
        """Read the whole file; None if there is none."""
        with suppress(FileNotFoundError):
            return self.read(path)
        return None

    def checked(self, path: str, cure: str = RESTORE) -> bytes:
        """Read the record at `path`, compare it with its digest, and return it without. Raises
        FileNotFoundError, and for a damaged record ValueError with its name and the cure."""
        data = self.read(path)
        try:
            return without_digest(path, data, is_needed=self.needs_digests)
        except ValueError as error:
            raise self._damaged(path, len(data), error, cure) from None

    def parsed(self, path: str, parse: Callable[[bytes], T], cure: str = RESTORE) -> T:
        """Read the record at `path` (`checked`) and parse it. Any error of `parse` becomes a
        ValueError with the record's name and the cure: a record without a digest may be damaged."""
        data = self.checked(path, cure)
        try:
            return parse(data)
        except Exception as error:
            raise self._damaged(path, len(data), error, cure) from error

    def _damaged(self, path: str, num_bytes: int, error: Exception, cure: str) -> ValueError:
        reason = " ".join(reason_of(error).split())
        return ValueError(
            f"{self.url}/{path} ({num_bytes} bytes) must be whole and as this version wrote it, it"
            f" is not ({reason}); {cure}"
        )

    def exists(self, path: str) -> bool:
        file = self._full(path)
        with self._reached():
            return bool(self._fs.exists(file))

    def list(self, directory: str) -> list[str]:
        """Names directly under `directory`, sorted, without unfinished writes; empty if there is no
        such directory."""
        self._fs.invalidate_cache()
        folder = self._full(directory)
        try:
            with self._reached():
                entries = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        names = {str(entry).rstrip("/").rpartition("/")[2] for entry in entries}
        return sorted(name for name in names if not name.startswith(ASIDE_PREFIX))

    def delete(self, path: str) -> None:
        """Delete a file or a tree, if it exists. A local tree is first renamed to a hidden name, so
        that no reader sees it half deleted."""
        target = self._full(path)
        with self._explained(path, 0):
            if not self._fs.exists(target):
                return
            if self.is_local:
                aside = _aside(target)
                os.replace(target, aside)
                target = aside
            self._fs.rm(target, recursive=True)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local directory's files to `path`. Each file appears whole or not at all, but an
        interrupted upload may leave some of the files."""
        for file in sorted(entry for entry in source.rglob("*") if entry.is_file()):
            name = f"{path}/{file.relative_to(source).as_posix()}"
            with self._explained(name, file.stat().st_size):
                if self.is_local:
                    with file.open("rb") as data:
                        self._replace(name, partial(shutil.copyfileobj, data))
                else:
                    self._fs.makedirs(self._full(name).rpartition("/")[0], exist_ok=True)
                    self._fs.put_file(str(file), self._full(name))

    def download(self, path: str, destination: Path) -> None:
        """Copy the tree at `path` into a local directory."""
        root = self._full(path).rstrip("/")
        with self._reached():
            for file in self._fs.find(root):
                target = destination / str(file)[str(file).index(root) + len(root) + 1 :]
                target.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(file, str(target))

    def check_writable(self) -> None:
        """Raise StoreError if a test file cannot be written and deleted, so that a run fails at its
        start and not after an hour of rollout."""
        probe = f"{ASIDE_PREFIX}probe-{uuid.uuid4().hex}"
        self.write(probe, b"probe")
        with self._explained(probe, 0):
            self._fs.rm_file(self._full(probe))

    def sweep(self, directory: str) -> int:
        """Delete unfinished files of killed writers anywhere under `directory`; returns their
        number. Call it only while nothing else writes there."""
        if not self.is_local or not Path(self._full(directory)).is_dir():
            return 0
        leftovers = list(Path(self._full(directory)).rglob(f"{ASIDE_PREFIX}*"))
        for leftover in leftovers:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        return len(leftovers)

    def _full(self, path: str) -> str:
        assert not path.startswith("/"), f"store paths are relative, got {path}"
        assert ".." not in path.split("/"), f"store paths stay inside the store, got {path}"
        return f"{self._root}/{path}" if path else self._root

    def _replace(self, path: str, fill: Fill) -> None:
        """Write a file on a local disk, whole and durable or not at all."""
        with self._written_aside(path, fill) as aside:
            os.replace(aside, self._full(path))
        _sync_directory(Path(self._full(path)).parent)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn a protocol's own read errors (no credentials, no answer) into a StoreError."""
        try:
            yield
        except Exception as error:
            self.check_run()
            if self.is_local or (isinstance(error, OSError) and str(error)):
                raise
            raise StoreError(
                f"the root must be a place that can be read, {self.url} is not"
                f" ({reason_of(error)}); check the bucket, the credentials and the endpoint"
            ) from error

    def check_run(self) -> None:
        """Raise StoreError if the folder of a run that has begun (`of_begun_run`) is gone."""
        if self._run_root is not None and not os.path.exists(f"{self._run_root}/{MANIFEST}"):
            raise StoreError(
                f"a run must find its own folder, {self._run_root} has no {MANIFEST} any more: it"
                " was moved or deleted; put it back, then resume the run from its last commit"
            )

    @contextmanager
    def _explained(self, path: str, num_bytes: int) -> Iterator[None]:
        """`explained` for a file of this store, unless the run's folder is gone (`check_run`)."""
        self.check_run()
        try:
            with explained(f"{self.url}/{path}", num_bytes):
                yield
        except OSError:
            self.check_run()
            raise

    @contextmanager
    def _written_aside(self, path: str, fill: Fill) -> Iterator[str]:
        target = self._full(path)
        try:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # a file is in the folder's place
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
        aside = _aside(target)
        try:
            with open(aside, "xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside)


def _protocols(filesystem: Any) -> tuple[str, ...]:  # Any: fsspec ships no types
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _aside(target: str) -> str:
    directory, _, _ = target.rpartition("/")
    return f"{directory}/{ASIDE_PREFIX}{uuid.uuid4().hex}"


def _sync_directory(directory: Path) -> None:
    """Sync a directory, so that a rename in it is durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
