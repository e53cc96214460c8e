"""Conditions on a user's rows, one a text: `difficulty >= 5`, `style in instruct, complete`.

    FIELD OPERATOR VALUE    operators: == != < <= > >= in contains

Numbers are compared as numbers, also where the file has them as text; everything else as text. A
field that is null meets no condition.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from artifacts.datasets.field_paths import Fields, find

_CONDITION = re.compile(r"(\S+)\s+(==|!=|<=|>=|<|>|in|contains)\s+(.+)")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a row must meet."""

    field: str  # dotted path
    sign: str  # the operator
    value: Any  # Any: JSON, or a text that is none

    def holds(self, fields: Fields, where: str) -> bool:
        """Whether a row meets it. ValueError if the row has no such field."""
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
                return _contains(found, self.value)
            case _:
                return self._in_order(found, where)

    def _in_order(self, found: Any, where: str) -> bool:  # Any: JSON
        number, bound = _number(found), _number(self.value)
        if number is None:
            raise ValueError(
                f"{where}: field {self.field!r} must be a number to be compared by {self.sign}, got"
                f" {str(found)[:60]!r}; compare it by ==, in or contains"
            )
        assert bound is not None, "parse_condition takes no other"
        return _ORDERS[self.sign](number, bound)


def parse_condition(text: str) -> Condition:
    """ValueError for a text that is no condition."""
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


def holds_all(conditions: Sequence[Condition], fields: Fields, where: str) -> bool:
    """Whether a row meets every condition."""
    return all(condition.holds(fields, where) for condition in conditions)


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


def _contains(found: Any, wanted: Any) -> bool:  # Any: JSON
    if isinstance(found, list):
        return any(_same(item, wanted) for item in found)
    return _written(wanted) in _written(found)


def _written(value: Any) -> str:  # Any: JSON, or what Parquet has beside it, such as a date
    is_json = isinstance(value, bool | int | float | list | dict | None)
    return json.dumps(value, default=str) if is_json else str(value)


def _number(value: Any) -> float | None:  # Any: as above
    """The number, a whole one exactly: a float would not tell long ones apart."""
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
