"""Lays values over others: those of a user over a preset's, those of a preset over another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:  # Any: parsed JSON
    """Lay `over` on `base`: mappings merge at every depth unless they differ in `kind`."""
    merged = dict(base)
    for key, value in over.items():
        below: Any = merged.get(key)  # Any: parsed JSON
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        if both and value.get("kind", below.get("kind")) == below.get("kind"):
            merged[key] = overlay(below, value)
        else:
            merged[key] = value
    return merged
