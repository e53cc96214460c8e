"""Seeding windows that earlier runs found: `seeding.json` at the artifact root, beside the runs. A
seeding window (seconds) belongs to a model, a worker class and a number of elastic workers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from artifacts.store import Store

logger = logging.getLogger(__name__)

FILE = "seeding.json"


def read_windows(store: Store, model: str, worker_class: str) -> dict[int, float]:
    """Seeding windows in seconds by number of workers; empty if no run has found one."""
    return _read_all(store).get(f"{model} on {worker_class}", {})


def write_windows(
    store: Store, model: str, worker_class: str, windows_s: Mapping[int, float]
) -> None:
    """Add windows to those in the file. If two runs write at the same time, the last one wins; a
    later run finds a lost window again."""
    windows = _read_all(store)
    windows.setdefault(f"{model} on {worker_class}", {}).update(windows_s)
    store.keep(FILE, json.dumps(windows, indent=1, sort_keys=True).encode())


def _parsed(data: bytes) -> dict[str, dict[int, float]]:
    return {
        key: {int(count): float(seconds) for count, seconds in windows.items()}
        for key, windows in json.loads(data).items()
    }


def _read_all(store: Store) -> dict[str, dict[int, float]]:
    try:
        return store.parsed(FILE, _parsed, "it is written anew")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("seeding windows are found again: %s", error)
        return {}
