"""Names that may move, replaced by what they stand for now: revisions of the hub by their commits.

A run keeps the pinned configuration in its manifest, so all its processes, and whoever resumes or
repeats it, read the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.models.choice import HubModelConfig

Config = TypeVar("Config", bound=BaseModel)


def pinned(config: Config) -> Config:
    """The configuration with every model and data set of the hub at its commit, at any depth.
    Raises ValueError for one that cannot be had."""
    if isinstance(config, HubModelConfig | HubRowsConfig):
        return config.pinned()
    fields = {name: getattr(config, name) for name in type(config).model_fields}
    found = {name: _pinned_value(value) for name, value in fields.items()}
    changed = {name: value for name, value in found.items() if value != fields[name]}
    return config.model_copy(update=changed) if changed else config


def _pinned_value(value: Any) -> Any:  # Any: values of fields
    if isinstance(value, BaseModel):
        return pinned(value)
    if isinstance(value, Mapping):
        return {key: _pinned_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_pinned_value, value))
    return value
