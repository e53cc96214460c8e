"""Which run a command means by the name that it is given. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from artifacts import layout
from artifacts.store import Store


def run_store(run: str, root: str) -> Store:
    """Where a run's files lie. `run` is its name under the root, or its folder's path or URL."""
    if "/" in run or run == ".." or Path(run, layout.MANIFEST).is_file():
        return Store.open(run.rstrip("/"))
    opened_root = Store.open(root)
    store = opened_root.child(run)
    if not store.exists(layout.MANIFEST):
        known = [name for name in opened_root.list("") if not name.startswith(".")]
        known = [name for name in known if opened_root.exists(f"{name}/{layout.MANIFEST}")]
        there = f"some of those there: {', '.join(known[-5:])}" if known else "there is none"
        raise ValueError(f"RUN must be a run under {opened_root.url}, got {run!r}; {there}")
    return store
