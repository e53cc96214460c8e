"""Scheduling policies by their configuration: those of the product, and those to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from flows.config.run_config import RunConfig
from research.ablations.longest_first import LongestFirstConfig
from research.ablations.over_sampling import OverSamplingConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.registry import SchedulingConfig

ComparedPolicy = Annotated[
    SchedulingConfig  # the product's
    | LongestFirstConfig  # synchronous steps that begin with what may take longest
    | OverSamplingConfig,  # keeps the first to finish and drops the rest
    Field(discriminator="kind"),
]
_SCHEDULING: TypeAdapter[Any] = TypeAdapter(ComparedPolicy)  # Any: a union of pydantic models


class ComparedConfig(RunConfig):
    """A run's configuration that may choose a policy to compare with, too."""

    scheduling: ComparedPolicy = Field(  # type: ignore[assignment]  # wider than what it overrides
        ..., description="How the rounds of a step are scheduled."
    )


def policy_of(scheduling: Mapping[str, object]) -> Policy:
    """What `scheduling` of a run's configuration chooses. Raises pydantic's ValidationError."""
    policy: Policy = _SCHEDULING.validate_python(dict(scheduling))
    return policy
