"""Reads the configuration that a run was started with from its manifest."""

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
    """Validate the configuration of a manifest. Raises ValueError, with the version to use instead,
    if another version wrote settings that this version does not know: the user who reads the run
    has not given these fields and cannot correct them."""
    try:
        return RunConfig.model_validate(kept)
    except ValidationError as error:
        raise ValueError(
            "the run's manifest must have a configuration of this version, it has another one"
            f" ({sentence(error)}); use {version}"
        ) from None
