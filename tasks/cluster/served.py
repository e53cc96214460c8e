"""Whether the process of a worker has held an actor before. A mark in its environment, which needs
nothing imported to be read."""

from __future__ import annotations

import os

VARIABLE = "ROLLFLOW_SERVED"


def mark_served(name: str) -> None:
    """This process holds this actor; nobody takes it for a new one any more."""
    os.environ[VARIABLE] = name


def has_served() -> bool:
    """Whether this process has held an actor that was marked."""
    return VARIABLE in os.environ
