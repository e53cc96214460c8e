"""What a process of another interpreter builds a game of GEM or TextArena from: standard library
only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.environments.adapters.gem import GemGame
from tasks.environments.adapters.package_game import PackageGame
from tasks.environments.adapters.textarena import TextArenaGame

GAMES: Mapping[str, type[PackageGame]] = {"gem": GemGame, "textarena": TextArenaGame}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRecipe:
    """Which game."""

    package: str  # one of GAMES
    id: str
    kwargs: Mapping[str, Any]  # Any: the game's own keyword arguments
    max_turns: int

    def build(self) -> PackageGame:
        """The game. Unusable, with the cure, if there can be none."""
        return GAMES[self.package](self.id, self.kwargs, self.max_turns)
