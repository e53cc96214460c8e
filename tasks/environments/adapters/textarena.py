"""A game of TextArena for one player. Runs in the interpreter that has it: standard library only.

    reset(num_players=1, seed)
    get_observation() -> (player, messages)      step(text) -> (done, info)
    close() -> (rewards, {player: {"reason", ...}}), when it is done

Its wrappers of observations repeat the whole game every turn. A model has read that already, so
what it is told are the messages since its last turn, without its own; actions go through the
wrappers. The reward comes with the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasks.environments.adapters.package_game import PackageGame
from tasks.environments.episodes.transition import Transition

PLAYER = 0


class TextArenaGame(PackageGame):
    """One game of TextArena."""

    package = "textarena"
    distribution = "textarena"
    oldest = (0, 7)
    registry = "textarena.envs.registration"

    def __init__(
        self, game_id: str, kwargs: Mapping[str, Any], max_turns: int
    ) -> None:  # Any: the game's own keyword arguments
        super().__init__(game_id, kwargs, max_turns)
        try:
            self.reset(0)
        except MemoryError:
            raise
        except Exception as error:  # so it says how many players there must be
            raise self.unusable("let one player play", error) from error

    def begin(self, game: Any, seed: int) -> str:  # Any: of the package
        game.reset(num_players=1, seed=seed)
        self._bound = _Bound(game.state)
        return "\n".join(said(game))

    def act(self, game: Any, text: str) -> Transition:  # Any: likewise
        done, info = game.step(text)
        messages = said(game)
        if not done:
            return Transition("\n".join(messages), 0.0, False, False, info)
        rewards, infos = game.close()
        details = {**info, **infos.get(PLAYER, {})}
        messages.append(str(details.get("reason", "")))
        return Transition(
            observation="\n".join(filter(None, messages)),
            reward=float((rewards or {}).get(PLAYER, 0.0)),
            terminated=not self._bound.was_met,
            truncated=self._bound.was_met,
            info=details,
        )


class _Bound:
    """Hears whether a game that asks if its turns are used up is told so."""

    def __init__(self, state: Any) -> None:  # Any: of the package
        self.was_met = False
        asked: Callable[[], bool] = getattr(state, "check_turn_limit", lambda: False)

        def check_turn_limit() -> bool:
            is_met = bool(asked())
            self.was_met = self.was_met or is_met
            return is_met

        state.check_turn_limit = check_turn_limit


def said(game: Any) -> list[str]:  # Any: of the package
    """What was said since the last call, by others than the player."""
    while "env" in vars(game):  # a wrapper
        game = game.env
    player, messages = game.get_observation()
    if isinstance(messages, str):
        return [messages]
    return [str(text) for sender, text, *_ in messages or () if sender != player]
