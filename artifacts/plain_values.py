"""Python values as JSON and back, and whether two are the same: what may cross the border of the sandbox.

Only values of exactly the builtin types pass, never a subclass: an object with an `__eq__` of its own is no value. Standard
library only, because it runs on both sides of the border.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_SCALARS = (type(None), bool, int, float, str)
_COLLECTIONS: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}  # Any: of whatever they hold


def to_json(value: Any) -> Any:  # Any: a value of the builtin types in, JSON out
    """The value as JSON: scalars and lists as they are, the rest as {type name: content}. ValueError for other types."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return [to_json(item) for item in value]
    if kind is dict:
        return {"dict": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in _COLLECTIONS.values():
        return {kind.__name__: [to_json(item) for item in value]}
    raise ValueError(f"a result must be a plain value, got {kind.__name__}")


def from_json(data: Any) -> Any:  # Any: JSON in, a value of the builtin types out
    """The inverse of `to_json`. ValueError for anything that it does not write; hostile nesting may raise RecursionError."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((name, content),) = data.items()
        return _tagged(name, content)
    except TypeError as error:
        raise ValueError(f"a value must be written by to_json, got {str(data)[:80]}") from error


def _tagged(name: str, content: Any) -> Any:  # Any: see from_json
    if name == "dict":
        return {from_json(key): from_json(item) for key, item in content}
    if name in ("bytes", "bytearray"):
        return bytes.fromhex(content) if name == "bytes" else bytearray.fromhex(content)
    if name == "complex":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    if name in _COLLECTIONS and isinstance(content, list):
        return _COLLECTIONS[name](from_json(item) for item in content)
    raise ValueError(f"a value must be written by to_json, got a {name!r}")


def same(expected: Any, given: Any, tolerance: float = 0.0) -> bool:  # Any: values of `from_json`
    """Equal in type and value, all the way down. True is not 1, a tuple no list; NaN equals NaN only where it is expected.

    `tolerance` is absolute and for floats; with one, an int passes for an expected float.
    """
    if isinstance(expected, float) and tolerance and type(given) in (int, float):
        return _close(expected, given, tolerance)
    if type(expected) is not type(given):
        return False
    if isinstance(expected, float):
        return expected == given or (math.isnan(expected) and math.isnan(given))
    if isinstance(expected, list | tuple):
        return len(expected) == len(given) and all(same(*pair, tolerance) for pair in zip(expected, given, strict=True))
    if isinstance(expected, dict):
        return (
            expected.keys() == given.keys()
            and _typed(expected) == _typed(given)
            and all(same(item, given[key], tolerance) for key, item in expected.items())
        )
    if isinstance(expected, set | frozenset):
        return expected == given and _typed(expected) == _typed(given)
    return bool(expected == given)


def _close(expected: float, given: float, tolerance: float) -> bool:
    try:
        return abs(expected - given) <= tolerance or expected == given or (math.isnan(expected) and math.isnan(given))
    except OverflowError:
        return False


def _typed(items: Iterable[Any]) -> set[tuple[str, Any]]:  # Any: hashable values
    """Elements with their types, because {True} == {1}."""
    return {(type(item).__name__, item) for item in items}
