"""The registry of environments: one line for each kind.

    EnvironmentConfig (chosen by `kind`) ──▶ head, build ──▶ Environment

A new kind is a file with its configuration and its class, and one line in this union.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.adapters.gymnasium import GymnasiumConfig
from tasks.environments.adapters.http import HttpConfig
from tasks.environments.adapters.package import GemConfig, TextArenaConfig
from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.tools.tools import ToolsConfig

EnvironmentConfig = Annotated[
    GuessConfig  # a number, by "Higher." and "Lower."
    | BanditConfig  # buttons that pay coins
    | GridConfig  # a walk to a goal
    | ToolsConfig  # questions, with a calculator or Python
    | CustomEnvironmentConfig  # a class of the user's
    | GymnasiumConfig  # an id of gymnasium
    | HttpConfig  # behind a server
    | GemConfig  # an id of GEM, in an interpreter of its own
    | TextArenaConfig,  # an id of TextArena, likewise
    Field(discriminator="kind"),
]
