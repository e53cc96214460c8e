"""A lock that lets only one thread at a time import transformers, or build a model with it.

At the end of its first import, transformers replaces its own module in `sys.modules`. A thread that
imports transformers meanwhile gets the old module: "cannot import name 'AutoTokenizer' from
'transformers'". While it loads a model, transformers replaces the method that ties weights, for the
class of all models. If two threads load at once, the second may save the first one's replacement as
the original, and from then on models of this process get no tied head weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock

UNUSED = ("sklearn", "scipy")
_IMPORTING = RLock()


@contextmanager
def importing_transformers() -> Iterator[None]:
    """Hold the lock during a block that imports transformers or a package that imports it (vLLM).
    The block must import no module of Rollflow: another thread may hold that module's import lock
    while it waits for this lock."""
    with _IMPORTING:
        _spare_unused()
        yield


@contextmanager
def building_model() -> Iterator[None]:
    """Hold the lock during a block that builds or loads a model."""
    with _IMPORTING:
        yield


@cache
def _spare_unused() -> None:
    """Hide the UNUSED packages from transformers, which take a third of a model's import time."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        # Python's mark of a missing module
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        from transformers.utils import is_scipy_available, is_sklearn_available

        is_scipy_available(), is_sklearn_available()  # both cache the answer
    finally:
        for name in hidden:
            del sys.modules[name]
