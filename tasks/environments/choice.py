"""The choice of an environment: one config union.

    EnvironmentConfig (chosen by `kind`) ──▶ head, build ──▶ Environment

`kinds` lists those that stand on their own and can be wrapped by another one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.environments.adapters.package import GemConfig, TextArenaConfig
from tasks.environments.delayed import DelayedConfig
from tasks.environments.registry import SingleEnvironment

EnvironmentConfig = Annotated[
    SingleEnvironment
    | GemConfig  # an id of GEM, in an interpreter of its own
    | TextArenaConfig  # an id of TextArena, likewise
    | DelayedConfig,  # any of the first, with delays
    Field(discriminator="kind"),
]
