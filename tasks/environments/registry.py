"""Every environment that stands on its own, one line per kind; `choice` adds those that wrap
another.

A new one is a file with its configuration and its class, and one line in this union. One of a
user's own needs neither: `kind: custom` names it by import path.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.adapters.gymnasium import GymnasiumConfig
from tasks.environments.adapters.http import HttpConfig
from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.tools.tools import ToolsConfig

SingleEnvironment = Annotated[
    GuessConfig  # a number, by "Higher." and "Lower."
    | BanditConfig  # buttons that pay coins
    | GridConfig  # a walk to a goal
    | ToolsConfig  # questions, with a calculator or Python
    | CustomEnvironmentConfig  # a class of the user's
    | GymnasiumConfig  # an id of gymnasium
    | HttpConfig,  # behind a server
    Field(discriminator="kind"),
]
