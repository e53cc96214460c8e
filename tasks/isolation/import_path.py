"""Import paths: 'package.module:name' or 'path/to/file.py:name', and the objects that they name.
Runs also in the processes of rewards: standard library only.

A file may import the modules beside it, at any time, and a module may lie in the working directory.
They are looked for after all others, so that none of them takes the place of a package, and not by
`sys.path`, which processes behind walls read.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class Beside:
    """Finds the modules that lie in some directories."""

    def __init__(self) -> None:
        self._directories: list[str] = []

    def add(self, directory: str) -> None:
        """Search this directory, too, from now on."""
        if directory not in self._directories:
            self._directories.append(directory)
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level module; modules of packages are found by other finders."""
        return PathFinder.find_spec(name, self._directories) if path is None else None


_beside = Beside()
_files = threading.RLock()  # one thread imports a file, the others wait until all of it is there

FORM = "'package.module:name' or 'path/to/file.py:name'"


def absolute(path: str) -> str:
    """A file's path that holds in the working directory of whatever process, without ~; the paths
    of modules stay as they are."""
    module_path, _, name = path.rpartition(":")
    if not module_path.endswith(".py"):
        return path
    return f"{Path(os.path.expanduser(module_path)).absolute()}:{name}"


def find(path: str) -> Any:  # Any: whatever the user's module has there
    """The object at an import path. LookupError if the module has no such name, ValueError if this
    is no import path, and whatever the module raises while it is imported."""
    module_path, _, name = path.rpartition(":")
    if not (module_path and name):
        raise ValueError(f"an import path must have a ':' before the name, got {path!r}")
    module = (
        _file_module(Path(module_path)) if module_path.endswith(".py") else _module(module_path)
    )
    if not hasattr(module, name):
        raise LookupError(f"{module_path} has nothing named {name}")
    return getattr(module, name)


def load(path: str) -> Any:  # Any: likewise
    """The object at an import path. ValueError, with the cure, if it cannot be had."""
    try:
        return find(path)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(
            f"an import path must be importable, {path!r} is not"
            f" ({type(error).__name__}: {error}); write {FORM}, and import it in a shell to see the"
            " error"
        ) from error


def file_of(path: str) -> str:
    """The file in which the object at an import path is made; empty where that is none. ValueError
    as `load`."""
    made_in = sys.modules.get(getattr(load(path), "__module__", ""))
    return str(getattr(made_in, "__file__", None) or "")


def _module(name: str) -> ModuleType:
    """A module that may lie in the working directory, behind all others: no file there stands in
    for a module of Python's, of a library's or of these sources."""
    _beside.add(os.getcwd())
    return importlib.import_module(name)


def _file_module(path: Path) -> ModuleType:
    """The file as a module, imported once a process: a class that is there twice cannot be
    pickled. Its name is its own, so that it shadows no other module."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    place = str(path.resolve())
    name = f"{path.stem}_{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"
    with _files:
        if name not in sys.modules:
            _import(name, place)
        return sys.modules[name]


def _import(name: str, place: str) -> None:
    """The file at this place as the module of this name."""
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _beside.add(os.path.dirname(place))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
