"""Pins revisions of the Hugging Face hub: replaces branches and tags, which may move, by commits.

A run keeps the pinned configuration in its manifest, so that all its processes, its resumes and its
repetitions read the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.models.registry import HubModelConfig
from flows.config.run_config import RunConfig


def pinned(config: RunConfig) -> RunConfig:
    """Return the configuration with every hub model and data set, at any depth, at its present
    commit. Raises ValueError for a model or data set that cannot be fetched."""
    found: RunConfig = _pinned(config)
    return found


def _pinned(value: Any) -> Any:  # Any: configurations and values of their fields
    match value:
        case HubModelConfig() | HubRowsConfig():
            return value.pinned()
        case BaseModel():
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            found = {name: _pinned(item) for name, item in fields.items()}
            changed = {name: item for name, item in found.items() if item != fields[name]}
            return value.model_copy(update=changed) if changed else value
        case Mapping():
            return {key: _pinned(item) for key, item in value.items()}
        case tuple():
            return tuple(map(_pinned, value))
    return value
