"""Import paths: 'package.module:name' or 'path/to/file.py:name', and the objects that they name.
Runs also in the processes of rewards: standard library only.

A file may import the modules beside it, at any time, and a module may lie in the working directory.
Both places are searched after all others, so that no file there replaces a module of Python, of a
library or of these sources; `sys.path`, which processes behind walls read, stays as it is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class Beside:
    """Finds modules in the directories of imported files."""

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


def absolute(path: str) -> str:
    """Returns the import path of a file with an absolute file, ~ expanded; of a module as it is."""
    module_path, _, name = path.rpartition(":")
    if not module_path.endswith(".py"):
        return path
    return f"{Path(os.path.expanduser(module_path)).absolute()}:{name}"


def find(path: str) -> Any:  # Any: whatever the user's module has there
    """Import and return the object at an import path. Raises LookupError if the module has no such
    name, ValueError if the path has not the form of one, and whatever the module itself raises."""
    module_path, _, name = path.rpartition(":")
    if not (module_path and name):
        raise ValueError(f"an import path must have a ':' before the name, got {path!r}")
    if module_path.endswith(".py"):
        module = _file_module(Path(module_path))
    else:
        _beside.add(os.getcwd())
        module = importlib.import_module(module_path)
    if not hasattr(module, name):
        raise LookupError(f"{module_path} has nothing named {name}")
    return getattr(module, name)


def load(path: str) -> Any:  # Any: likewise
    """Import the object at an import path. Raises ValueError, with the cure, if that fails."""
    try:
        return find(path)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(
            f"an import path must be importable, {path!r} is not"
            f" ({type(error).__name__}: {error}{raised_at(error, path)}); write"
            " 'package.module:name' or 'path/to/file.py:name', and import it in a shell to see the"
            " error"
        ) from error


def source_of(path: str) -> str:
    """Returns the file of the module in an import path, which is not imported; empty if there is
    none."""
    module_path = path.rpartition(":")[0]
    if module_path.endswith(".py"):
        return os.path.realpath(module_path)
    _beside.add(os.getcwd())
    try:
        spec = importlib.util.find_spec(module_path)
    except (ImportError, ValueError):
        return ""
    return os.path.realpath(spec.origin) if spec and spec.origin else ""


def source_digest(path: str) -> str:
    """blake2b of that file; empty if there is none."""
    try:
        return hashlib.blake2b(Path(source_of(path)).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def raised_at(error: BaseException, path: str) -> str:
    """Returns ", FILE line N", the last place of an error in the folder of an import path's file;
    empty if the error passed none."""
    if isinstance(error, SyntaxError):
        return ""  # says it itself
    folder = os.path.dirname(source_of(path)) + os.sep
    places = [
        f", {frame.filename} line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.realpath(frame.filename).startswith(folder)
    ]
    return places[-1] if len(folder) > 1 and places else ""


def file_of(path: str) -> str:
    """Returns the file that defines the object; empty if it has none. Raises as `load`."""
    made_in = sys.modules.get(getattr(load(path), "__module__", ""))
    return str(getattr(made_in, "__file__", None) or "")


def _file_module(path: Path) -> ModuleType:
    """A class that exists twice cannot be pickled: import a file once per process."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    place = str(path.resolve())
    name = f"{path.stem}_{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"
    with _files:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        _beside.add(os.path.dirname(place))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
