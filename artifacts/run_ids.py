"""Finds the run that a user means: by its id, by a beginning that no other run has, or as `last`.

last              the run that was begun last
tiny-2026         the only run whose id begins so
tiny-20261127...  the run of this id, whatever others begin alike
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import get_close_matches

from artifacts import layout
from artifacts.commit import read_manifest
from artifacts.store import Store

LAST = "last"
MOST_TOLD = 5  # run ids in an error
NUM_READERS = 16  # manifests read side by side: a remote store answers slowly


def run_ids(root: Store) -> list[str]:
    """The names of all runs under an artifact root, in alphabetical order."""
    folders = [name for name in sorted(root.list("")) if not name.startswith(".")]
    return [name for name in folders if root.exists(f"{name}/{layout.MANIFEST}")]


def find_run(root: Store, asked: str) -> str:
    """The id of the run that is meant. Raises ValueError, with the nearest ids or some of those
    there, for none and for a beginning of several."""
    if asked and root.exists(f"{asked}/{layout.MANIFEST}"):
        return asked
    known = run_ids(root)
    if asked == LAST and known:
        return _latest(root, known)
    begun = [name for name in known if asked and name.startswith(asked)]
    if len(begun) == 1:
        return begun[0]
    raise ValueError(
        f"RUN must be a run under {root.url}, got {asked!r}; {_cure(asked, known, begun)}"
    )


def _cure(asked: str, known: Sequence[str], begun: Sequence[str]) -> str:
    if not known:
        return "there is none"
    if begun:
        return f"{len(begun)} begin so, the last of them: {_told(begun)}; write more of it"
    if near := get_close_matches(asked, known, n=1):
        return f"did you mean {near[0]}?"
    return f"some of those there: {_told(known)}; or write {LAST}"


def _told(names: Sequence[str]) -> str:
    return ", ".join(names[-MOST_TOLD:])


def _latest(root: Store, known: Sequence[str]) -> str:
    """The run that was begun last by its manifest; of unreadable ones nothing is known."""

    def created(name: str) -> tuple[str, str]:
        with suppress(ValueError, OSError):
            return read_manifest(root.child(name)).created, name
        return "", name

    with ThreadPoolExecutor(NUM_READERS) as readers:
        return max(readers.map(created, known))[1]
