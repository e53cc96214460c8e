"""transformers is imported, and builds a model, in one thread at a time.

At the end of its first import, which takes a second, transformers puts another module in its
place in `sys.modules`. A thread that asks for it meanwhile waits for that end and is then given the
module that was replaced: "cannot import name 'AutoTokenizer' from 'transformers'". Every import of
it is therefore made inside `with importing_transformers():`, which `tests/test_layers.py` checks.

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
    """The block imports transformers, or what imports it (vLLM), and no module of ours: a thread
    that imports such a module may wait for this block."""
    with _IMPORTING:
        _spare_unused()
        yield


@contextmanager
def building_model() -> Iterator[None]:
    """The block builds a model or loads one; the others of this process wait for its end."""
    with _IMPORTING:
        yield


@cache
def _spare_unused() -> None:
    """Let transformers take these for not installed. It imports them, with pandas, for a measure of
    assisted generation and for losses of image models, and that is a third of what a model takes to
    import."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        # Python's mark of what is not there
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        from transformers.utils import is_scipy_available, is_sklearn_available

        is_scipy_available(), is_sklearn_available()  # they remember the answer
    finally:
        for name in hidden:
            del sys.modules[name]
