"""Checks of architectures that end in every way; light, for the processes that import them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from research.benchmarks.architecture_table import StartRefused, refusals


def passes(name: str, folder: Path) -> str:
    assert not list(folder.iterdir())
    return f"{name} in 3 steps"


def says_nothing(name: str, folder: Path) -> str:
    return ""


def refuses(name: str, folder: Path) -> str:
    raise StartRefused(f"a run cannot train {name} in {folder}: it has sinks (two); choose another")


def refuses_in_other_words(name: str, folder: Path) -> str:
    with refusals():
        raise ValueError("heads must be 32 wide, got 5; choose another model\nor none")


def is_wrong(name: str, folder: Path) -> str:
    raise ValueError("no such tensor; write it anew")


def is_wrong_in_cells(name: str, folder: Path) -> str:
    raise AssertionError("norm.weight: 3 | 4")


def fails(name: str, folder: Path) -> str:
    return next(iter(()))  # StopIteration, which has no words


def dies(name: str, folder: Path) -> str:
    os._exit(7)


def hangs(name: str, folder: Path) -> str:
    time.sleep(600)
    return ""
