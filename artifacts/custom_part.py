"""A part of the user's own, by import path: the settings of every kind `custom` that names a class.

    path, kwargs ─▶ made() ─▶ the user's object, once in a process ─▶ calling(method): its errors
                                                            with file, line and the command to try

Only the path travels to other processes, each of which imports the class itself. Rewards, which are
functions and run in processes of their own, have a path too, but not this base.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python

from artifacts.config_parts import FrozenConfig, Misfits
from artifacts.import_path import absolute, load, raised_at, source_digest
from artifacts.urls import Arguments, Location

SOURCES = Path(__file__).parents[1]
ImportPath = Annotated[Location, AfterValidator(absolute)]


class CustomPart(FrozenConfig):
    """Settings of a part of the user's own: the import path of a class and its arguments."""

    check: ClassVar[str] = ""  # KIND of the command `rollflow check KIND PATH`
    methods: ClassVar[tuple[str, ...]] = ()  # that the class must have

    path: ImportPath = Field(
        ..., description="Its class, as 'package.module:Name' or 'path/to/file.py:Name'."
    )
    kwargs: Arguments = Field(
        default_factory=dict, description="Keyword arguments that the class is made with."
    )

    @property
    def name(self) -> str:
        """The name of the user's class."""
        return self.path.rpartition(":")[2]

    def made(self, **settings: object) -> Any:  # Any: an object of the user's
        """The user's object, made with kwargs and these settings once in a process. Raises
        ValueError if it cannot be made or lacks a method."""
        values = {**settings, **self.kwargs}
        given = json.dumps(values, sort_keys=True, default=to_jsonable_python)
        part = _made(self.path, given)
        missing = [name for name in self.methods if not callable(getattr(part, name, None))]
        if missing:
            raise ValueError(
                f"a {self.check} must have {' and '.join(self.methods)}, {self.path} has no"
                f" {', '.join(missing)}; write it, see docs/parts.md"
            )
        return part

    @property
    def part(self) -> Any:  # Any: an object of the user's
        """The user's object. Raises ValueError if it cannot be made or lacks a method."""
        return self.made()

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Turn an error of the user's code within the block into a ValueError with its file and
        line. A ValueError that Rollflow itself raised has its own cure and stays as it is."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error) or _is_ours(error):
                raise
            raise ValueError(
                f"{method} of {self.path} must not raise, it did ({type(error).__name__}:"
                f" {error}{raised_at(error, self.path)}); mend it there, and try it with 'rollflow"
                f" check {self.check} {self.path}'"
            ) from error


@lru_cache(maxsize=64)
def _made(path: str, kwargs: str) -> Any:  # Any: an object of the user's
    made_by = load(path)
    given = json.loads(kwargs)
    try:
        return made_by(**given)
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        if isinstance(error, ValidationError):
            faults = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
        else:
            faults = f"{type(error).__name__}: {error}{raised_at(error, path)}"
        raise ValueError(
            f"{path} must be callable with kwargs {given}, it is not ({faults}); correct the class"
            " or kwargs"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error that says that the process needs more memory, torch's among them."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _is_ours(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace else ""
    rooms = [str(SOURCES / room) for room in ("artifacts", "tasks", "flows")]
    return isinstance(error, ValueError) and file.startswith(tuple(rooms))


def own_parts(value: object, field: str = "") -> Iterator[tuple[str, Any]]:  # Any: has a `path`
    """Yield (field, part) for every part of kind `custom` in a configuration or in values of its
    fields."""
    match value:
        case BaseModel():
            below = {name: getattr(value, name) for name in type(value).model_fields}
            if below.get("kind") == "custom" and "path" in below:
                yield field, value
            for name, item in below.items():
                yield from own_parts(item, f"{field}.{name}" if field else name)
        case Mapping():
            for key, item in value.items():
                yield from own_parts(item, f"{field}.{key}")
        case tuple():
            for place, item in enumerate(value):
                yield from own_parts(item, f"{field}.{place}")


def faults_of_parts(config: BaseModel) -> Iterator[tuple[str, str]]:
    """Make every part of the user's own once; yields (field, fault) for one that cannot be made."""
    for field, part in own_parts(config):
        if isinstance(part, CustomPart):
            try:
                _ = part.part
            except ValueError as error:
                yield field, str(error)


def check_own_parts(config: BaseModel) -> None:
    """Raise Misfits with all parts of the user's own that cannot be made."""
    if found := [f"{field}: {fault}" for field, fault in faults_of_parts(config)]:
        raise Misfits(found)


def source_digests(config: BaseModel) -> dict[str, str]:
    """Digest of the file of every part of the user's own, by field; those without a file are left
    out."""
    digests = {f"{field}.path": source_digest(part.path) for field, part in own_parts(config)}
    return {field: digest for field, digest in digests.items() if digest}
