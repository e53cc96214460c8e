"""The configuration that a run was started with, as its manifest has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flows.config.run_config import RunConfig


def kept_config(kept: Mapping[str, Any]) -> RunConfig:  # Any: JSON values
    """ValueError where another version of this project wrote it: nobody who reads a run has given
    its fields."""
    try:
        return RunConfig.model_validate(kept)
    except ValidationError as error:
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
        told = "; ".join(f"{name}: {message}" if name else message for name, message in faults)
        raise ValueError(
            "the run's manifest must have a configuration of this version, it has another one"
            f" ({told}); use the version that wrote it"
        ) from None
