"""Plain values, the only ones that may leave the sandbox: converts Python values to JSON and back,
and compares two of them as JSON.

Only values of exactly the builtin types pass: an object with an `__eq__` of its own could claim to
equal anything. A program's result is never hashed outside the sandbox, since a program can easily
return numbers that collide in a dictionary. Uses the standard library only, because it runs inside
and outside the sandbox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_DEPTH = 100  # collections within collections
_SCALARS = (type(None), bool, int, float, str)
# Any: of any elements
_COLLECTIONS: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_FROM_BASE: Mapping[type, Callable[[Any], Any]] = {  # Any: of that type, or a subclass's
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    bytearray: lambda value: bytearray(bytearray.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}
MAX_INT_DIGITS = 4300  # the limit of Python's reader of JSON
_TOO_LARGE = 10**MAX_INT_DIGITS


def to_json(
    value: Any, depth: int = MAX_DEPTH, is_exact: bool = True
) -> Any:  # Any: a value of the builtin types in, JSON out
    """Convert a value to JSON: scalars and lists as they are, others as {type name: content}.
    Raises ValueError for types that are not plain, and beyond `depth` levels. Unless `is_exact`, an
    object of a subclass is written as the value of its builtin base."""
    if not is_exact and type(value) not in _SCALARS:  # no method of the subclass is called
        base = next((base for base in type(value).__mro__ if base in _FROM_BASE), None)
        value = _FROM_BASE[base](value) if base and base is not type(value) else value
    kind = type(value)
    if kind in _SCALARS:
        if kind is int and not -_TOO_LARGE < value < _TOO_LARGE:
            raise ValueError(f"a result's int may have {MAX_INT_DIGITS} digits, this one has more")
        return value
    if not depth:
        raise ValueError(f"a value may have {MAX_DEPTH} levels, this one has more")
    below = depth - 1
    if kind is list:
        return [to_json(item, below, is_exact) for item in value]
    if kind is dict:
        pairs = value.items()
        return {"dict": [[to_json(part, below, is_exact) for part in pair] for pair in pairs]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in _COLLECTIONS.values():
        return {kind.__name__: [to_json(item, below, is_exact) for item in value]}
    raise ValueError(f"a result must be a plain value, got {kind.__name__}")


def from_json(data: Any) -> Any:  # Any: JSON in, a value of the builtin types out
    """The inverse of `to_json`. Call it only for the tests' own JSON, or JSON that passed `check`.
    Raises ValueError for JSON that `to_json` does not write."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((name, content),) = data.items()
        return _tagged(name, content)
    except (TypeError, ValueError, OverflowError) as error:
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


def check(
    data: Any, depth: int = MAX_DEPTH, *, is_hashed: bool = False
) -> None:  # Any: JSON from anybody
    """Raise ValueError for JSON that `to_json` does not write. Reads each part once, hashes none.
    `is_hashed`: the value is an element of a set or a key of a dictionary, and so must not contain
    a list, set or dictionary at any depth."""
    kind = type(data)
    if kind in _SCALARS:
        return
    if not depth:
        raise ValueError(f"a value may have {MAX_DEPTH} levels, this one has more")
    if kind is list and not is_hashed:
        for item in data:
            check(item, depth - 1)
        return
    if kind is not dict or len(data) != 1:
        raise ValueError("a value must be written by to_json")
    ((name, content),) = data.items()
    if is_hashed and name in ("dict", "set", "bytearray"):
        raise ValueError(f"a {name} cannot be hashed")
    _check_tagged(name, content, depth - 1, is_hashed)


def _check_tagged(name: str, content: Any, depth: int, is_hashed: bool) -> None:  # Any: see check
    if name in ("bytes", "bytearray"):
        if type(content) is str and bytes.fromhex(content).hex() == content:
            return
    elif type(content) is list and name == "complex":
        if [type(part) for part in content] == [float, float]:
            return
    elif type(content) is list and name == "dict":
        for pair in content:
            if type(pair) is not list or len(pair) != 2:
                raise ValueError("a dict must be written by to_json, as pairs")
            check(pair[0], depth, is_hashed=True)
            check(pair[1], depth)
        return
    elif type(content) is list and name in _COLLECTIONS:
        for item in content:
            check(item, depth, is_hashed=is_hashed or name != "tuple")
        return
    raise ValueError(f"a value must be written by to_json, got a {name[:20]!r}")


def same(expected: Any, given: Any, tolerance: float = 0.0) -> bool:  # Any: checked JSON
    """True if two values are equal in type and value at every depth: True differs from 1, and a
    tuple from a list. A NaN equals an expected NaN. `tolerance` is absolute and applies to floats.
    If it is not 0, an int may equal an expected float."""
    if type(expected) is float and tolerance and type(given) in (int, float):
        return _close(expected, given, tolerance)
    if type(expected) is not type(given):
        return False
    if type(expected) is float:
        return expected == given or (math.isnan(expected) and math.isnan(given))
    if type(expected) is list:
        return len(expected) == len(given) and all(
            same(*pair, tolerance) for pair in zip(expected, given, strict=True)
        )
    if type(expected) is dict:
        ((name, content),) = expected.items()
        return name in given and _same_tagged(name, content, given[name], tolerance)
    return bool(expected == given)


def _same_tagged(name: str, expected: Any, given: Any, tolerance: float) -> bool:  # Any: see same
    if name in ("set", "frozenset"):
        return sorted(map(_text, expected)) == sorted(map(_text, given))
    if name != "dict":
        return same(expected, given, tolerance)
    if len(expected) != len(given):
        return False
    texts, values = _by_key(expected)
    given_texts, given_values = _by_key(given)
    return texts == given_texts and same(values, given_values, tolerance)


def _by_key(pairs: Sequence[Any]) -> tuple[list[str], list[Any]]:  # Any: JSON of keys and values
    """The keys of a dictionary's pairs as sorted texts, and the values in the same order."""
    texts = [_text(key) for key, _ in pairs]
    order = sorted(range(len(pairs)), key=texts.__getitem__)
    return [texts[place] for place in order], [pairs[place][1] for place in order]


def _text(data: Any) -> str:  # Any: JSON of a value that can be hashed
    """A text that two values share exactly if the values are the same."""
    if type(data) is int:
        return f"{data:#x}"
    if type(data) is float:
        return repr(data + 0.0)  # which makes -0.0 and 0.0 one
    if type(data) is not dict:
        return repr(data)
    ((name, content),) = data.items()
    if type(content) is str:
        return f"{name}({content})"
    parts = [_text(part) for part in content]
    return f"{name}({','.join(sorted(parts) if name == 'frozenset' else parts)})"


def _close(expected: float, given: float, tolerance: float) -> bool:
    try:
        return (
            abs(expected - given) <= tolerance
            or expected == given
            or (math.isnan(expected) and math.isnan(given))
        )
    except OverflowError:
        return False
