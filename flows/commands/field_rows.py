"""What `rollflow explain --fields` says: every field of the configuration with its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def field_rows(
    schema: dict[str, Any], place: str = "", node: dict[str, Any] | None = None
) -> Iterator[tuple[str, str]]:  # Any: JSON schema
    """Every field of the configuration with its sentence, by dotted path; of a union every
    alternative."""
    here = node if node is not None else schema
    for name, field in here.get("properties", {}).items():
        path = f"{place}{name}"
        yield path, str(field.get("description", ""))
        for reference in _references(field):
            yield from field_rows(schema, f"{path}.", schema["$defs"][reference])
        for reference in (
            *_references(field.get("additionalProperties")),
            *_references(field.get("items")),
        ):
            yield from field_rows(schema, f"{path}.*.", schema["$defs"][reference])


def _references(field: Any) -> Iterator[str]:  # Any: JSON schema
    if isinstance(field, dict):
        if "$ref" in field:
            yield str(field["$ref"]).rpartition("/")[2]
        for key in ("anyOf", "oneOf", "allOf"):
            for option in field.get(key, ()):
                yield from _references(option)
