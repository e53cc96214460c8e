"""The configuration that a run was started with, as its manifest has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flows.config.run_config import RunConfig
from flows.config.sentence import sentence


def kept_config(
    kept: Mapping[str, Any],  # Any: JSON values
    version: str = "the version that wrote it",
) -> RunConfig:
    """The configuration of a manifest. ValueError, which names the version to use, where another
    version wrote settings that this one has not: nobody who reads a run has given its fields."""
    try:
        return RunConfig.model_validate(kept)
    except ValidationError as error:
        raise ValueError(
            "the run's manifest must have a configuration of this version, it has another one"
            f" ({sentence(error)}); use {version}"
        ) from None
