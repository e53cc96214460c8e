"""Bookkeeping of checkpoints: one directory per step, complete or absent; the last few are kept.

    aside = checkpoints.begin() -> the learner saves there -> checkpoints.commit(step, aside)
    -> the step is committed -> checkpoints.prune(step)

A checkpoint newer than the last committed step is never resumed from, which is why pruning waits for that commit. Leaves out
what is inside. On a local root `commit` is a rename; on a remote one it uploads the files and a marker last, so it must run on
the machine that saved them.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from pathlib import Path

from artifacts import layout
from artifacts.store import Store

MARKER = "complete.json"


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, store: Store, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}; resume needs the last checkpoint")
        self._store = store
        self._keep = keep

    def begin(self) -> Path:
        """An empty local directory to save into."""
        if not self._store.is_local:
            return Path(tempfile.mkdtemp(prefix="rollflow-checkpoint-"))
        aside = self._store.local_path(f"{layout.CHECKPOINTS}/{layout.ASIDE_PREFIX}{uuid.uuid4().hex}")
        aside.mkdir(parents=True)
        return aside

    def commit(self, step: int, aside: Path) -> str:
        """Make the saved files the checkpoint of `step`, replacing one that an interrupted attempt at it left."""
        name = layout.checkpoint_dir(step)
        files = {file.relative_to(aside).as_posix(): file.stat().st_size for file in aside.rglob("*") if file.is_file()}
        marker = json.dumps({"step": step, "files": files}, sort_keys=True).encode()
        self._drop(step)
        if self._store.is_local:
            _sync_tree(aside)
            (aside / MARKER).write_bytes(marker)
            os.replace(aside, self._store.local_path(name))
        else:
            self._store.upload(aside, name)
            self._store.write(f"{name}/{MARKER}", marker)
        return name

    def prune(self, committed_step: int) -> None:
        """Drop all but the last `keep` checkpoints of steps <= committed_step."""
        for step in [step for step in self.steps() if step <= committed_step][: -self._keep]:
            self._drop(step)

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        names = [name for name in self._store.list(layout.CHECKPOINTS) if name.isdigit()]
        return [int(name) for name in names if self._store.exists(f"{layout.CHECKPOINTS}/{name}/{MARKER}")]

    def latest(self, at_most: int | None = None) -> int | None:
        """The last step with a checkpoint, of those <= at_most (the last committed step) if given."""
        steps = [step for step in self.steps() if at_most is None or step <= at_most]
        return steps[-1] if steps else None

    def fetch(self, step: int) -> Path:
        """A local directory with the checkpoint's files; a remote one is downloaded. Raises ValueError if it is not there."""
        name = layout.checkpoint_dir(step)
        if not self._store.exists(f"{name}/{MARKER}"):
            where = f"{self._store.url}/{layout.CHECKPOINTS}"
            raise ValueError(f"step {step} must have a checkpoint, {where} has steps {self.steps()}; choose one of them")
        if self._store.is_local:
            return self._store.local_path(name)
        local = Path(tempfile.mkdtemp(prefix="rollflow-checkpoint-"))
        self._store.download(name, local)
        return local

    def _drop(self, step: int) -> None:
        """The marker goes first: a half-deleted checkpoint is none."""
        name = layout.checkpoint_dir(step)
        self._store.delete(f"{name}/{MARKER}")
        self._store.delete(name)


def _sync_tree(directory: Path) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
