"""Bookkeeping of checkpoints: one directory per step, complete or absent; the last few are kept.

    with checkpoints.aside(scratch) as directory: the learner saves there
    ─▶ checkpoints.commit(step, directory) ─▶ the step is committed ─▶ checkpoints.prune(step)

The marker has size and BLAKE3 of every file, compared before a checkpoint is handed out. On a local
root `commit` is a rename; on a remote one the files pass through a scratch directory, which every
rank and the caller must see, and the marker is uploaded last.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts import layout
from artifacts.digests import file_digest, with_digest
from artifacts.store import Store, explained

MARKER = "complete.json"
EARLIER = "delete its folder: an earlier checkpoint is used, or training is replayed from the start"

Kept = Mapping[str, Any]  # a file's size in bytes and BLAKE3; earlier versions kept only the size


class DamagedCheckpoint(ValueError):
    """Raised for a checkpoint that differs from the saved one; the message names the file."""


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, store: Store, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}; resume needs the last checkpoint")
        self._store = store
        self._keep = keep

    @contextmanager
    def aside(self, scratch: Path) -> Iterator[Path]:
        """Make an empty directory to save into, deleted after the block unless `commit` took it.
        `scratch`: parent of that directory if the root is remote."""
        if not self._store.is_local:
            with _scratch(scratch) as directory:
                yield directory
            return
        directory = self._store.local_path(
            f"{layout.CHECKPOINTS}/{layout.ASIDE_PREFIX}{uuid.uuid4().hex}"
        )
        self._store.check_run()
        directory.mkdir(parents=True)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def commit(self, step: int, aside: Path) -> str:
        """Make the files in `aside` the checkpoint of `step`; returns its store path. Replaces the
        checkpoint of an interrupted attempt. Raises ValueError if there are no files."""
        name = layout.checkpoint_dir(step)
        files = [file for file in aside.rglob("*") if file.is_file()]
        if not files:
            raise ValueError(
                f"a checkpoint must have a file of each rank, {aside} has none; have"
                " keep.weights_dir and the artifact root be the same for the flow and its learners"
            )
        self._drop(step)
        with ThreadPoolExecutor(1) as beside:
            marker = beside.submit(_marker, step, aside, files)
            if not self._store.is_local:
                self._store.upload(aside, name)
                self._store.keep(f"{name}/{MARKER}", marker.result())
                return name
            num_bytes = sum(file.stat().st_size for file in files)
            with explained(f"{self._store.url}/{name}", num_bytes):
                _sync(files)
                (aside / MARKER).write_bytes(with_digest(f"{name}/{MARKER}", marker.result()))
                _sync([aside / MARKER])
                os.replace(aside, self._store.local_path(name))
        return name

    def prune(self, committed_step: int) -> None:
        """Delete all but the last `keep` checkpoints of steps <= committed_step."""
        for step in [step for step in self.steps() if step <= committed_step][: -self._keep]:
            self._drop(step)

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return [
            int(name)
            for name in self._store.list(layout.CHECKPOINTS)
            if name.isdigit() and self._store.exists(f"{layout.CHECKPOINTS}/{name}/{MARKER}")
        ]

    @contextmanager
    def fetched(self, step: int, scratch: Path) -> Iterator[Path]:
        """A directory with the checkpoint's files; if the root is remote, a copy that is deleted
        after the block. Raises ValueError if step `step` has no checkpoint, DamagedCheckpoint if a
        file is not as it was saved."""
        name = layout.checkpoint_dir(step)
        if not self._store.exists(f"{name}/{MARKER}"):
            where = f"{self._store.url}/{layout.CHECKPOINTS}"
            raise ValueError(
                f"step {step} must have a checkpoint, {where} has steps {self.steps()}; choose one"
                " of them"
            )
        if self._store.is_local:
            self._check(name, self._store.local_path(name))
            yield self._store.local_path(name)
            return
        with _scratch(scratch) as directory:
            self._store.download(name, directory)
            self._check(name, directory)
            yield directory

    def _check(self, name: str, directory: Path) -> None:
        try:
            kept = self._store.parsed(f"{name}/{MARKER}", _read_marker, EARLIER)
        except ValueError as error:
            raise DamagedCheckpoint(str(error)) from error
        for file, wanted in kept.items():
            path = directory / file
            found = _kept_of(path) if path.is_file() else {"bytes": None}
            if not wanted.items() <= found.items():
                raise DamagedCheckpoint(
                    f"{self._store.url}/{name}/{file} must be as it was saved ({_shown(wanted)}),"
                    f" it is not ({_shown(found)}); {EARLIER}"
                )

    def _drop(self, step: int) -> None:
        """Delete a checkpoint, its marker first: half-deleted files then count as no checkpoint."""
        name = layout.checkpoint_dir(step)
        self._store.delete(f"{name}/{MARKER}")
        self._store.delete(name)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=parent) as directory:
        yield Path(directory)


def _sync(files: Iterable[Path]) -> None:
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def _marker(step: int, directory: Path, files: Iterable[Path]) -> bytes:
    """The marker of a checkpoint: size and digest of every file, by name."""
    kept = {file.relative_to(directory).as_posix(): _kept_of(file) for file in files}
    return json.dumps({"step": step, "files": kept}, sort_keys=True).encode()


def _read_marker(marker: bytes) -> dict[str, Kept]:
    files = json.loads(marker)["files"].items()
    return {file: {"bytes": kept} if isinstance(kept, int) else dict(kept) for file, kept in files}


def _kept_of(file: Path) -> Kept:
    return {"bytes": file.stat().st_size, "blake3": file_digest(file)}


def _shown(kept: Kept) -> str:
    if kept["bytes"] is None:
        return "it is not there"
    return f"{kept['bytes']} bytes, BLAKE3 {kept.get('blake3', 'not kept')[:12]}"
