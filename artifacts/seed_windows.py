"""Seeding windows that runs have found, beside the runs: `seeding.json` at the artifact root.

A window holds for a model on workers of one class, by their number; another run of the same kind
takes it up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from artifacts.store import Store

logger = logging.getLogger(__name__)

FILE = "seeding.json"


def read_windows(store: Store, model: str, worker_class: str) -> dict[int, float]:
    """Seconds by number of workers; nothing where no run has found any."""
    return _known(store).get(_key(model, worker_class), {})


def write_windows(
    store: Store, model: str, worker_class: str, windows_s: Mapping[int, float]
) -> None:
    """Keep these beside those of other models and classes. Of two runs that write at the same time
    the last one's are kept: a window that is lost is found again."""
    known = _known(store)
    known[_key(model, worker_class)] = {**read_windows(store, model, worker_class), **windows_s}
    store.keep(FILE, json.dumps(known, indent=1, sort_keys=True).encode())


def _known(store: Store) -> dict[str, dict[int, float]]:
    try:
        return store.parsed(FILE, _windows, "it is written anew")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("seeding windows are found again: %s", error)
        return {}


def _windows(data: bytes) -> dict[str, dict[int, float]]:
    return {
        key: {int(count): float(seconds) for count, seconds in windows.items()}
        for key, windows in json.loads(data).items()
    }


def _key(model: str, worker_class: str) -> str:
    return f"{model} on {worker_class}"
