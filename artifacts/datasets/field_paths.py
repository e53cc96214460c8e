"""Fields of a user's row by dotted paths: `reward_model.ground_truth`, `test_info.0.name`.

A number picks from a list, and where a path goes on into a text, the text is read as JSON. A column
whose own name has dots is found by its whole name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

Fields = Mapping[str, Any]  # Any: whatever the user's row holds
_PLACE = re.compile("[0-9]{1,9}")  # in a list


def find(fields: Fields, path: str, where: str) -> Any:  # Any: JSON
    """The value at a path, None behind a null. ValueError names the row, the path, and what there
    is instead."""
    value: Any = fields  # Any: JSON
    rest = path
    while rest and value is not None:
        value = _parsed(value, path, where)
        name, rest = _first(value, rest)
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and _PLACE.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ValueError(
                f"{where}: field {path!r} is missing, {_described(value)}; name the right field in"
                " the task's config"
            )
    return value


def text_of(fields: Fields, path: str, where: str) -> str:
    """The text at a path; a number is taken as it is written."""
    value = find(fields, path, where)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_broken = isinstance(value, float | Decimal) and math.isfinite(value)
    if not (is_whole or is_broken or (isinstance(value, str) and value.strip())):
        raise ValueError(
            f"{where}: field {path!r} must be a text or a number and not blank, got"
            f" {str(value)[:60]!r}; fill it in"
        )
    return str(value)


def column_of(path: str, columns: list[str]) -> str | None:
    """The column in which a path begins; None if there is none."""
    if path in columns:
        return path
    head = path.partition(".")[0]
    return head if head in columns else None


def _first(value: Any, path: str) -> tuple[str, str]:  # Any: JSON
    """The part of the path that names something in `value`, and what is left of it."""
    if isinstance(value, Mapping) and path in value:
        return path, ""
    name, _, rest = path.partition(".")
    return name, rest


def _parsed(value: Any, path: str, where: str) -> Any:  # Any: JSON
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where}: field {path!r} leads into a text that must be JSON, got {value[:60]!r}"
            f" ({error}); name the field itself"
        ) from error


def _described(value: Any) -> str:  # Any: JSON
    if isinstance(value, Mapping):
        return f"there is {', '.join(map(repr, sorted(map(str, value))))}"
    if isinstance(value, list):
        return f"there is a list of {len(value)}"
    return f"there is {value!r}"
