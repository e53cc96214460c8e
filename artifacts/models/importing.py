"""Locks by which one thread at a time imports transformers, or builds a model with it.

At the end of its first import, which takes a second, transformers puts another module in its place
in `sys.modules`. A thread that imports it meanwhile waits for that end and then gets the replaced
module: "cannot import name 'AutoTokenizer' from 'transformers'". Every import of transformers is
therefore made inside `with importing_transformers():`, which `tests/test_layers.py` checks.

While it loads a model, transformers takes the tying of weights away from the class of all models.
Of two threads that load, the second may take what the first has put there for the original, and
from then on no model of this process has the weights of its head. Every model is therefore built
inside `with building_model():`.
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
    """Lock the block, which imports transformers or a package that imports transformers (vLLM). It
    must import no module of ours: another thread may hold such a module's import lock and wait."""
    with _IMPORTING:
        _spare_unused()
        yield


@contextmanager
def building_model() -> Iterator[None]:
    """Lock the block, which builds or loads a model; other threads' blocks wait for its end."""
    with _IMPORTING:
        yield


@cache
def _spare_unused() -> None:
    """Hide packages from transformers. It would import them, with pandas, for a measure of assisted
    generation and for losses of image models, which is a third of the time of a model's import."""
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
