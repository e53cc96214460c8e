"""Scheduling policies by their configuration, as runs choose them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.registry import SchedulingConfig

_SCHEDULING: TypeAdapter[Any] = TypeAdapter(SchedulingConfig)  # Any: a union of pydantic models


def policy_of(scheduling: Mapping[str, object]) -> Policy:
    """What `scheduling` of a run's configuration chooses. Raises pydantic's ValidationError."""
    policy: Policy = _SCHEDULING.validate_python(dict(scheduling))
    return policy
