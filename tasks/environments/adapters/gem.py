"""A game of GEM (gem-llm). Runs in the interpreter that has it: standard library only.

    reset(seed) -> (text, {"suffix"})      step(text) -> (text, reward, terminated, truncated, info)

GEM gives both flags for a question that is answered in one turn, and for a game that its bound of
turns cut: only the latter counts its turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.environments.adapters.package_game import PackageGame
from tasks.environments.episodes.transition import Transition

SUFFIX = "suffix"  # of `info`: what is asked for after every observation


class GemGame(PackageGame):
    """One game of GEM."""

    package = "gem"
    distribution = "gem-llm"
    oldest = (0, 1)
    registry = "gem.envs.registration"

    def begin(self, game: Any, seed: int) -> str:  # Any: of the package
        observation, info = game.reset(seed=seed)
        first: str = observation_text(observation, info)
        return first

    def act(self, game: Any, text: str) -> Transition:  # Any: likewise
        observation, reward, terminated, truncated, info = game.step(text)
        is_over = bool(terminated or truncated)
        is_cut = bool(truncated) and (not terminated or is_at_bound(game))
        return Transition(
            observation=observation if is_over else observation_text(observation, info),
            reward=float(reward),
            terminated=bool(terminated) and not is_cut,
            truncated=is_cut,
            info={name: value for name, value in info.items() if name != SUFFIX},
        )


def observation_text(
    observation: Any, info: Mapping[str, Any]
) -> Any:  # Any: checked where it is read
    """What a model reads, as GEM's own wrapper puts it together."""
    if not info.get(SUFFIX):
        return observation
    return f"{observation}{'' if observation.endswith(chr(10)) else chr(10)}{info[SUFFIX]}"


def is_at_bound(game: Any) -> bool:  # Any: of the package
    """Whether the game has counted as many turns as it gives."""
    bound = getattr(game, "max_turns", None)
    return bound is not None and getattr(game, "turn_count", 0) >= bound
