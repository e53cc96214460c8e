"""Bounds of episodes, and the number and limits of environment processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds, Fixed
from artifacts.urls import Location


class EnvironmentProcessConfig(FrozenConfig):
    """The processes in which environments step, of one engine or of one worker for them."""

    num_hosts: int = Field(
        64,
        ge=1,
        le=2000,
        description="Processes at a time, and so episodes at a time; further ones wait in order.",
    )
    place_s: DerivedSeconds = 1800.0  # for an episode to get a process or a lost worker back
    reset_s: DerivedSeconds = 60.0  # to build and reset an environment
    step_s: DerivedSeconds = 30.0  # for a step
    memory_mb: int = Field(
        512,
        ge=16,
        description="Address space of a process beyond what all processes share from the start.",
    )
    disk_mb: int = Field(
        16, ge=1, description="Files that a process may write, in a /tmp of its own in memory."
    )
    max_observation_chars: Fixed[int] = 32_768  # the longest observation; a longer one is a failure
    max_restarts: int = Field(
        8,
        ge=0,
        description=(
            "Restarts in a row without one successful reset or step, after which the run ends"
            " because the environment cannot work."
        ),
    )
    isolation: Literal["namespaces", "landlock"] = Field(
        "namespaces",
        description=(
            "Walls around the processes: 'namespaces' (bubblewrap), or the weaker 'landlock' where"
            " the machine forbids them."
        ),
    )
    readable: tuple[Location, ...] = Field(
        (),
        description=(
            "Absolute paths outside of /tmp that environments may read beside Python, the system's"
            " libraries and what the run imports from."
        ),
    )


class EpisodeConfig(FrozenConfig):
    """Bounds of episodes, whatever their environment. Their turns are bounded by each
    environment's `max_turns`, and their tokens, given ones included, by
    `sampling.max_response_tokens`."""

    max_turn_tokens: int = Field(
        128,
        ge=1,
        description=(
            "Bound on the tokens that a model samples in one turn; what it has said by then is its"
            " action."
        ),
    )
    episode_s: float = Field(
        600.0,
        gt=0,
        description=(
            "Seconds after the first observation from which on an episode begins no further turn;"
            " one that is moved to another engine has them anew."
        ),
    )
    hosts: EnvironmentProcessConfig = Field(
        default_factory=EnvironmentProcessConfig,
        description="The processes of each engine in which environments step.",
    )
