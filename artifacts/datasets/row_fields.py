"""Finds fields of a user's row by dotted paths, and checks conditions on fields.

    reward_model.ground_truth    test_info.0.name      a number picks from a list
    difficulty >= 5    style in instruct, complete     FIELD OPERATOR VALUE
    operators                                          == != < <= > >= in contains

If a path continues into a text, the text is parsed as JSON. A column whose own name has dots is
found by its whole name. Conditions compare numbers as numbers, also if the file has them as text.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Fields = Mapping[str, Any]  # Any: whatever the user's row holds
_PLACE = re.compile("[0-9]{1,9}")  # in a list


def find(fields: Fields, path: str, where: str) -> Any:  # Any: JSON
    """The value at a path; None if the path leads to or through a null. Raises ValueError for a
    missing field; its message names the row, the path and the fields that are there."""
    value: Any = fields  # Any: JSON
    rest = path
    while rest and value is not None:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where}: field {path!r} leads into a text that must be JSON, got"
                    f" {value[:60]!r} ({error}); name the field itself"
                ) from error
        if isinstance(value, Mapping) and rest in value:
            name, rest = rest, ""
        else:
            name, _, rest = rest.partition(".")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and _PLACE.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            there = repr(value)
            if isinstance(value, Mapping):
                there = ", ".join(map(repr, sorted(map(str, value))))
            elif isinstance(value, list):
                there = f"a list of {len(value)}"
            raise ValueError(
                f"{where}: field {path!r} is missing, there is {there}; name the right field in the"
                " task's config"
            )
    return value


def text_of(fields: Fields, path: str, where: str) -> str:
    """The text at a path, or a number as text. Raises ValueError for blank texts and other
    values."""
    value = find(fields, path, where)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_broken = isinstance(value, float | Decimal) and math.isfinite(value)
    if not (is_whole or is_broken or (isinstance(value, str) and value.strip())):
        raise ValueError(
            f"{where}: field {path!r} must be a text or a number and not blank, got"
            f" {str(value)[:60]!r}; fill it in"
        )
    return str(value)


_CONDITION = re.compile(r"(\S+)\s+(==|!=|<=|>=|<|>|in|contains)\s+(.+)")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on a field of a row."""

    field: str  # dotted path
    sign: str  # the operator
    value: Any  # Any: JSON, or a text that is none

    def holds(self, fields: Fields, where: str) -> bool:
        """True if a row meets the condition. Raises ValueError if the row lacks the field, or the
        operator needs a number and the field holds none."""
        found = find(fields, self.field, where)
        if found is None:
            return False
        match self.sign:
            case "==":
                return _same(found, self.value)
            case "!=":
                return not _same(found, self.value)
            case "in":
                return any(_same(found, value) for value in self.value)
            case "contains":
                if isinstance(found, list):
                    return any(_same(item, self.value) for item in found)
                return _written(self.value) in _written(found)
        number, bound = _number(found), _number(self.value)
        if number is None:
            raise ValueError(
                f"{where}: field {self.field!r} must be a number to be compared by {self.sign}, got"
                f" {str(found)[:60]!r}; compare it by ==, in or contains"
            )
        assert bound is not None, "parse_condition takes no other"
        return _ORDERS[self.sign](number, bound)


def parse_condition(text: str) -> Condition:
    """Parse a text (FIELD OPERATOR VALUE) into a condition. Raises ValueError for other texts."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"a filter must be FIELD OPERATOR VALUE with one of == != < <= > >= in contains, got"
            f" {text!r}; write for example 'difficulty >= 5'"
        )
    field, sign, written = found.groups()
    value = _value(written)
    if sign == "in" and not isinstance(value, list):
        value = [_value(part.strip()) for part in written.split(",")]
    if sign in _ORDERS and _number(value) is None:
        raise ValueError(
            f"a filter by {sign} must compare with a number, got {text!r}; compare by ==, in or"
            " contains"
        )
    return Condition(field=field, sign=sign, value=value)


def _value(written: str) -> Any:  # Any: JSON
    try:
        return json.loads(written)
    except ValueError:
        return written


def _same(found: Any, wanted: Any) -> bool:  # Any: JSON
    numbers = _number(found), _number(wanted)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if isinstance(found, bool) and wanted in ("True", "False"):  # as Python writes them
        return bool(str(found) == wanted)
    return _written(found) == _written(wanted)


def _written(value: Any) -> str:  # Any: JSON, or what Parquet has beside it, such as a date
    is_json = isinstance(value, bool | int | float | list | dict | None)
    return json.dumps(value, default=str) if is_json else str(value)


def _number(value: Any) -> float | None:  # Any: as above
    """A value as a number, or None. Two long ints may be the same float."""
    if isinstance(value, Decimal):
        value = str(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return None
