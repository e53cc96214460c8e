"""Which environments there are: one line per kind, and the one place that asks for it.

    EnvironmentConfig (chosen by `kind`) ──▶ build ──▶ Environment

A new environment is a file with its configuration and its class, and one line in this union. One of
a user's own needs neither: `kind: custom` names it by import path.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.chain_calc import ChainCalcConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig

EnvironmentConfig = Annotated[
    GuessConfig  # a number, by "Higher." and "Lower."
    | BanditConfig  # buttons that pay coins
    | ChainCalcConfig  # sums, with a calculator
    | GridConfig,  # a walk to a goal
    Field(discriminator="kind"),
]
