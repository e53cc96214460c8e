"""A game of GEM or TextArena, in processes of an interpreter that has the package.

The packages pin versions that a run cannot have, so they live in a virtual environment of their
own; `python` names it. Nothing is imported there but the package, these sources and the standard
library.
"""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from artifacts.urls import Arguments, Location
from tasks.environments.adapters.package_games import (
    GemGame,
    PackageGame,
    PackageRecipe,
    TextArenaGame,
)
from tasks.environments.base import AdapterConfig, Environment
from tasks.environments.processes.blocking import BlockingEnvironment


def _absolute(path: str) -> str:
    """Keeps links: a virtual environment is recognised by its own."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


class PackageConfig(AdapterConfig):
    """Play a game of a package."""

    game: ClassVar[type[PackageGame]]

    id: str = Field(
        ..., description="Its id, for example game:Mastermind-v0-easy or FrozenLake-v0."
    )
    python: Annotated[Location, AfterValidator(_absolute)] = Field(
        "",
        description=(
            "The interpreter that has the package: bin/python of a virtual environment, Python 3.10"
            " or later, outside of /tmp. Empty: the run's own."
        ),
    )
    kwargs: Arguments = Field(
        default_factory=dict, description="Keyword arguments of the package's make."
    )

    @property
    def interpreter(self) -> str:
        return self.python

    def recipe(self) -> PackageRecipe:
        return PackageRecipe(
            game=self.game, id=self.id, kwargs=dict(self.kwargs), max_turns=self.max_turns
        )

    def build(self) -> Environment:
        """Make the environment in a process of its own: this one may lack the package."""
        return BlockingEnvironment(self)


class GemConfig(PackageConfig):
    """Play a game of GEM."""

    game: ClassVar[type[PackageGame]] = GemGame
    slow_imports: ClassVar[tuple[str, ...]] = (GemGame.registry,)

    kind: Literal["gem"] = Field("gem", description="Chooses a game of the package gem-llm.")


class TextArenaConfig(PackageConfig):
    """Play a game of TextArena."""

    game: ClassVar[type[PackageGame]] = TextArenaGame
    slow_imports: ClassVar[tuple[str, ...]] = (TextArenaGame.registry,)

    kind: Literal["textarena"] = Field(
        "textarena", description="Chooses a game of the package textarena for one player."
    )
