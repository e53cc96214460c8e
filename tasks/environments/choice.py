"""The choice of an environment: one config union.

    EnvironmentConfig (chosen by `kind`) ──▶ head, build ──▶ Environment

`kinds` lists those that stand on their own.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.environments.delayed import DelayedConfig
from tasks.environments.kinds import SingleEnvironment

EnvironmentConfig = Annotated[SingleEnvironment | DelayedConfig, Field(discriminator="kind")]
