"""Games of GEM (gem-llm) and TextArena, in the interpreter that has the package: standard library
only.

    package there? ─▶ recent enough? ─▶ id known? ─▶ made once ─▶ ( seeded, made anew ─▶ turns )*

The packages draw from the random sources that a whole process shares: they are seeded before every
game, and a process has one game.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import random
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from tasks.environments.transition import Transition, Unusable

MAX_DETAIL_CHARS = 200  # of a value of `info`


class PackageGame(ABC):
    """Plays a game, made anew for every episode because a game may keep state over its reset."""

    package: ClassVar[str]  # what is imported
    distribution: ClassVar[str]  # what is installed
    oldest: ClassVar[tuple[int, int]]  # version that has this interface
    registry: ClassVar[str]  # module with `make` and ENV_REGISTRY

    def __init__(
        self, game_id: str, kwargs: Mapping[str, Any], max_turns: int
    ) -> None:  # Any: the game's own keyword arguments
        """Check the package and the id, and make the game once. Raises Unusable if that fails."""
        self._id, self._kwargs, self._max_turns = game_id, dict(kwargs), max_turns
        self._check_version()
        try:
            self._registry = importlib.import_module(self.registry)
        except Exception as error:  # a module may raise anything
            raise Unusable(
                f"the package {self.distribution} of {sys.prefix} must be importable, it raised"
                f" {type(error).__name__}: {str(error)[:300]}; import {self.registry} in a shell"
                " with that interpreter to see the error"
            ) from error
        known = list(self._registry.ENV_REGISTRY)
        if self._id not in known:
            near = get_close_matches(self._id, known, n=3, cutoff=0.5)
            cure = f"did you mean {' or '.join(near)}?"
            if not near:
                cure = f"it has {', '.join(known[:8])} ..."
            raise Unusable(f"id must be one that {self.package} knows, got {self._id!r}; {cure}")
        self._make(0)

    def reset(self, seed: int) -> str:
        self._turns_left = self._max_turns
        self._game = self._make(seed)
        return self.begin(self._game, seed % (1 << 32))

    def step(self, text: str) -> Transition:
        self._turns_left -= 1
        turn = self.act(self._game, text)
        is_cut = turn.truncated or (self._turns_left <= 0 and not turn.terminated)
        info = {str(name): str(value)[:MAX_DETAIL_CHARS] for name, value in turn.info.items()}
        return turn._replace(truncated=is_cut, info=info)

    @abstractmethod
    def begin(self, game: Any, seed: int) -> str:  # Any: of the package
        """Reset a new game; returns its first observation."""

    @abstractmethod
    def act(self, game: Any, text: str) -> Transition:  # Any: likewise
        """Take a turn, regardless of the bound on turns."""

    def _make(self, seed: int) -> Any:  # Any: of the package
        random.seed(seed % (1 << 32))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))
        try:
            return self._registry.make(self._id, **self._kwargs)
        except MemoryError:
            raise
        except Exception as error:  # a game may raise anything
            raise self.unusable("make", error) from error

    def unusable(self, verb: str, error: Exception) -> Unusable:
        """Returns the error for a game that cannot be made or played."""
        return Unusable(
            f"{self.package} must be able to {verb} {self._id!r} with kwargs {self._kwargs}, it"
            f" says {type(error).__name__}: {str(error)[:300]}; correct id or kwargs, or give it"
            " the files that it looks for (in its virtual environment, or by"
            " episodes.hosts.readable)"
        )

    def _check_version(self) -> None:
        wanted = f"{self.distribution}>={self.oldest[0]}.{self.oldest[1]}"
        try:
            found = importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError as error:
            raise Unusable(
                f"an environment of kind {self.package} needs the package {self.distribution},"
                f" there is none in {sys.prefix}; install '{wanted}' in a virtual environment and"
                " name its bin/python as python"
            ) from error
        numbers = re.match(r"(\d+)\.(\d+)", found)
        if numbers and tuple(map(int, numbers.groups())) < self.oldest:
            raise Unusable(
                f"the package {self.distribution} must be {wanted}, {sys.prefix} has {found};"
                f" install '{wanted}' there"
            )


SUFFIX = "suffix"  # of `info`: what is asked for after every observation


class GemGame(PackageGame):
    """One game of GEM.

        reset(seed) -> (text, {"suffix"})
        step(text) -> (text, reward, terminated, truncated, info)

    GEM gives both flags for a question that is answered in one turn, and for a game that its bound
    of turns cut: only the latter counts its turns.
    """

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
        bound = getattr(game, "max_turns", None)
        is_at_bound = bound is not None and getattr(game, "turn_count", 0) >= bound
        is_cut = bool(truncated) and (not terminated or is_at_bound)
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
    """Returns the observation with its suffix, as GEM's own wrapper puts it together."""
    if not info.get(SUFFIX):
        return observation
    return f"{observation}{'' if observation.endswith(chr(10)) else chr(10)}{info[SUFFIX]}"


PLAYER = 0


class TextArenaGame(PackageGame):
    """One game of TextArena for one player.

        reset(num_players=1, seed)
        get_observation() -> (player, messages)      step(text) -> (done, info)
        close() -> (rewards, {player: {"reason", ...}}), when it is done

    Its wrappers of observations repeat the whole game every turn. A model has read that already, so
    an observation has the messages since the model's last turn, without its own; actions go through
    the wrappers. The reward comes with the end.
    """

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
        self._is_at_bound = False  # whether the game has found that its turns are used up
        asked: Callable[[], bool] = getattr(game.state, "check_turn_limit", lambda: False)

        def check_turn_limit() -> bool:
            is_met = bool(asked())
            self._is_at_bound |= is_met
            return is_met

        game.state.check_turn_limit = check_turn_limit
        return "\n".join(messages_of(game))

    def act(self, game: Any, text: str) -> Transition:  # Any: likewise
        done, info = game.step(text)
        messages = messages_of(game)
        if not done:
            return Transition("\n".join(messages), 0.0, False, False, info)
        rewards, infos = game.close()
        details = {**info, **infos.get(PLAYER, {})}
        messages.append(str(details.get("reason", "")))
        return Transition(
            observation="\n".join(filter(None, messages)),
            reward=float((rewards or {}).get(PLAYER, 0.0)),
            terminated=not self._is_at_bound,
            truncated=self._is_at_bound,
            info=details,
        )


def messages_of(game: Any) -> list[str]:  # Any: of the package
    """Returns the messages since the last call, without the player's own."""
    while "env" in vars(game):  # a wrapper
        game = game.env
    player, messages = game.get_observation()
    if isinstance(messages, str):
        return [messages]
    return [str(text) for sender, text, *_ in messages or () if sender != player]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRecipe:
    """The recipe of one game, for a process of another interpreter."""

    game: type[PackageGame]
    id: str
    kwargs: Mapping[str, Any]  # Any: the game's own keyword arguments
    max_turns: int

    def build(self) -> PackageGame:
        """Make the game. Raises Unusable, with the cure, if that is impossible."""
        return self.game(self.id, self.kwargs, self.max_turns)
