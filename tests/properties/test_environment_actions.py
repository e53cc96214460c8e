"""Whatever is said to a game, in whatever order: no exception, a finite reward from 0 to 1, an end
within its turns, and the same transcript from the same seed, also over a pickle."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.game import GameConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.tools.tools import ToolsConfig

GAMES: tuple[GameConfig, ...] = (
    GuessConfig(),
    GuessConfig(style="terse"),
    BanditConfig(),
    BanditConfig(style="terse"),
    GridConfig(),
    GridConfig(style="terse"),
    ToolsConfig(tools=("calculator", "python")),
    ToolsConfig(style="terse"),
)
ALMOST = st.sampled_from(
    ["7", "A", "a", "up", "u", "calc 1 + 2", "answer 3", "c1p2", "calc", "20.", " B ."]
)
TEXTS = st.one_of(st.none(), ALMOST, st.text(), st.integers().map(str))  # none: a valid move


@pytest.mark.parametrize("config", GAMES, ids=lambda game: f"{game.kind}")
@given(
    seed=st.integers(0, 2**31 - 1),
    said=st.lists(TEXTS, min_size=16, max_size=16),
    pickled=st.sets(st.integers(0, 15)),
)
def test_any_episode_ends_and_repeats(
    config: GameConfig, seed: int, said: list[str | None], pickled: set[int]
) -> None:
    rng, game, again = random.Random(seed), config.build(), config.build()
    observations, total = [game.reset(seed)], 0.0
    assert again.reset(seed) == observations[0]
    for number, text in enumerate(said):
        action = config.valid_action(observations, rng) if text is None else text
        if number in pickled:
            again = pickle.loads(pickle.dumps(again))
        turn = game.step(action)
        assert again.step(action) == turn
        total += turn.reward
        observations.append(turn.observation)
        assert turn.observation
        if turn.terminated or turn.truncated:
            break
    else:
        pytest.fail("an episode ends within its turns")
    assert number < config.max_turns
    assert not (turn.terminated and turn.truncated)
    assert 0.0 <= total <= 1.0 + 1e-9
