"""What a process of environments is at."""

from __future__ import annotations

from enum import StrEnum


class HostState(StrEnum):
    """What a process is at."""

    FREE = "free"  # no episode
    RESETTING = "resetting"  # starting and building included
    THINKING = "thinking"  # the model's turn
    STEPPING = "stepping"
    DEAD = "dead"  # killed, or ended by itself, and not yet replaced
