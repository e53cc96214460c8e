"""The games: what they say, what a move is worth, when they end, and how they are told to a
model."""

from __future__ import annotations

import pickle
import random
import re

import pytest
from pydantic import TypeAdapter, ValidationError

from artifacts.datasets.chain_sum import CHARACTERS
from tasks.environments.base import Environment
from tasks.environments.games.bandit import Bandit, BanditConfig
from tasks.environments.games.game import GameConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.registry import EnvironmentConfig

GAMES: tuple[GameConfig, ...] = (GuessConfig(), BanditConfig(), GridConfig())
TERSE_GAMES: tuple[GameConfig, ...] = (
    GuessConfig(style="terse", largest=10, max_turns=4),
    BanditConfig(style="terse"),
    GridConfig(style="terse", size=3),
)
HOSTILE = (
    "",
    "   ",
    "no",
    "9" * 10_000,
    "٣",
    "²",
    "1e1",
    "-3",
    "\ud800",
    "\x00",
    "10\n11",
    "<|im_end|>",
)


def bisecting(config: GuessConfig, seed: int) -> float:
    """The reward of halving what is left; reads the answers alone."""
    game, low, high = config.build(), 1, config.largest
    words = config.words()
    game.reset(seed)
    while True:
        guess = (low + high) // 2
        turn = game.step(f" {guess}.\n")
        if turn.terminated:
            return turn.reward
        assert turn.observation in (words.higher, words.lower)
        if turn.observation == words.higher:
            low = guess + 1
        else:
            high = guess - 1


@pytest.mark.parametrize("config", [GuessConfig(), GuessConfig(style="terse")])
def test_halving_what_is_left_always_finds_the_number(config: GuessConfig) -> None:
    assert all(bisecting(config, seed) == 1.0 for seed in range(200))


def test_every_number_of_the_range_is_thought_of() -> None:
    config = GuessConfig(largest=4, max_turns=4)

    def number(seed: int) -> int:
        game = config.build()
        game.reset(seed)
        return next(guess for guess in range(1, 5) if game.step(str(guess)).reward)

    assert {number(seed) for seed in range(60)} == {1, 2, 3, 4}


def test_a_guess_says_whether_it_kept_to_the_answers() -> None:
    game = GuessConfig(largest=9, max_turns=9).build()
    game.reset(
        next(seed for seed in range(99) if random.Random(f"guess/{seed}").randint(1, 9) == 6)
    )
    said = [game.step(text) for text in ("3", "2", "none", "8", "9", "6")]
    assert [turn.observation for turn in said] == [
        "Higher.", "Higher.", "Say one number from 1 to 9.", "Lower.", "Lower.", "Right.",
    ]  # fmt: skip
    assert [turn.info["action"] for turn in said] == [
        "consistent", "inconsistent", "invalid", "consistent", "inconsistent", "consistent",
    ]  # fmt: skip
    assert [turn.reward for turn in said] == [0, 0, 0, 0, 0, 1]
    assert [turn.terminated for turn in said] == [False] * 5 + [True]


@pytest.mark.parametrize("text", [*HOSTILE, "0", "21", "7 8", "seven"])
def test_what_is_no_number_of_the_range_uses_up_a_try(text: str) -> None:
    game = GuessConfig(max_turns=2).build()
    game.reset(0)
    first, last = game.step(text), game.step(text)
    assert first.observation == "Say one number from 1 to 20."
    assert (first.terminated, last.terminated, last.reward) == (False, True, 0.0)


def test_a_press_pays_its_share_of_the_best() -> None:
    game = Bandit(BanditConfig(max_turns=4))
    assert game.reset(5) == "Press A, B or C."
    game.pays = [4, 8, 1]
    turns = [game.step(text) for text in ("A", "b", " C.", "B")]
    assert [turn.observation for turn in turns] == [
        "4 coins.",
        "Press A, B or C.",
        "1 coin.",
        "8 coins.",
    ]
    assert [turn.reward for turn in turns] == [4 / 32, 0, 1 / 32, 8 / 32]
    assert [turn.terminated for turn in turns] == [False] * 3 + [True]


def test_there_is_always_a_button_that_pays() -> None:
    for seed in range(300):
        game = Bandit(BanditConfig(buttons=2))
        game.reset(seed)
        assert max(game.pays) > 0


def test_a_shortest_way_leads_to_the_goal_and_dithering_does_not() -> None:
    for seed in range(60):
        game = GridConfig().build()
        x, y, goal_x, goal_y = map(int, re.findall(r"\d", game.reset(seed)))
        ways = ["right" if goal_x > x else "left"] * abs(goal_x - x)
        ways += ["up" if goal_y > y else "down"] * abs(goal_y - y)
        turns = [game.step(way) for way in ways]
        assert [turn.reward for turn in turns] == [0.0] * (len(ways) - 1) + [1.0]
        assert turns[-1].terminated
        assert turns[-1].observation == f"At {goal_x} {goal_y}, goal {goal_x} {goal_y}."
        game.reset(seed)
        lost = [game.step("who knows") for _ in range(len(ways) + 3)]
        assert [turn.terminated for turn in lost] == [False] * (len(lost) - 1) + [True]
        assert {turn.observation for turn in lost} == {f"At {x} {y}, goal {goal_x} {goal_y}."}
        assert sum(turn.reward for turn in lost) == 0


def test_a_wall_stops_a_walk() -> None:
    game = GridConfig(size=3, max_turns=12, spare_moves=12).build()
    seed = next(s for s in range(99) if game.reset(s) == "At 2 1, goal 0 0.")
    game.reset(seed)
    said = [game.step(word).observation[:6] for word in ("right", "up", "up", "up")]
    assert said == ["At 2 1", "At 2 2", "At 2 2", "At 2 2"]


def test_a_walk_longer_than_the_turns_is_cut() -> None:
    game = GridConfig(size=9, max_turns=2).build()
    game.reset(next(s for s in range(999) if "0 0, goal 8" in game.reset(s)))
    first, last = game.step("up"), game.step("up")
    assert (first.truncated, last.truncated, last.terminated) == (False, True, False)


@pytest.mark.parametrize("config", GAMES, ids=lambda game: game.kind)
def test_the_head_is_a_chat_that_ends_with_an_answer(config: GameConfig) -> None:
    head = config.head()
    assert [message.role for message in head] == [
        "system",
        *["user", "assistant"] * (len(head) // 2),
    ]
    assert all(message.content for message in head)
    assert head == config.head(), "every prompt of a run has the same head"


@pytest.mark.parametrize("config", GAMES, ids=lambda game: game.kind)
def test_the_examples_of_the_head_are_played_by_the_rules(config: GameConfig) -> None:
    shown = [message.content for message in config.head()[1:]]
    while shown:
        num_shown = max(_played(config, seed, shown) for seed in range(3_000))
        assert num_shown > 0, f"no episode begins as {shown}"
        shown = shown[num_shown:]


def _played(config: GameConfig, seed: int, shown: list[str]) -> int:
    """How many of the texts shown are a whole episode of this seed; 0 if none is."""
    game = config.build()
    observation = game.reset(seed)
    for index in range(0, len(shown), 2):
        if observation != shown[index]:
            return 0
        turn = game.step(shown[index + 1])
        observation = turn.observation
        if turn.terminated:
            return index + 2
    return 0


@pytest.mark.parametrize("config", TERSE_GAMES, ids=lambda game: game.kind)
def test_a_terse_game_is_told_in_the_characters_of_the_tiny_model(config: GameConfig) -> None:
    assert [message.content for message in config.head()] == [""]
    game = config.build()
    said = game.reset(0)
    for text in ("5", "b", "nonsense", "1"):
        assert re.fullmatch(rf"[{CHARACTERS}]+", said)
        said = game.step(text).observation


@pytest.mark.parametrize("config", [*GAMES, *TERSE_GAMES], ids=lambda game: game.kind)
def test_a_demonstration_is_an_episode_of_valid_moves(config: GameConfig) -> None:
    for seed in range(20):
        turns = config.demonstrate(seed, random.Random(seed))
        game = config.build()
        observation = game.reset(seed)
        for number, (shown, action) in enumerate(turns, start=1):
            assert shown == observation
            turn = game.step(action)
            assert turn.info["action"] != "invalid"
            assert (turn.terminated or turn.truncated) == (number == len(turns))
            observation = turn.observation


def test_demonstrations_differ_by_the_random_source_alone() -> None:
    config = GuessConfig()
    assert config.demonstrate(3, random.Random(1)) == config.demonstrate(3, random.Random(1))
    played = {str(config.demonstrate(3, random.Random(source))) for source in range(9)}
    assert len(played) == 9


def test_heedful_guesses_are_consistent_with_every_answer_before_them() -> None:
    config = GuessConfig(style="terse", largest=30, max_turns=6)
    for seed in range(20):
        game = config.build()
        game.reset(seed)
        turns = config.demonstrate(seed, random.Random(seed), is_heedful=True)
        assert {game.step(action).info["action"] for _, action in turns} == {"consistent"}


@pytest.mark.parametrize("config", GAMES, ids=lambda game: game.kind)
def test_a_game_knows_heedful_moves_if_it_says_so(config: GameConfig) -> None:
    if config.knows_heedful_moves:
        assert config.demonstrate(0, random.Random(0), is_heedful=True)
        return
    with pytest.raises(NotImplementedError):
        config.demonstrate(0, random.Random(0), is_heedful=True)


def after_a_pickle(game: Environment) -> Environment:
    copy: Environment = pickle.loads(pickle.dumps(game))
    return copy


@pytest.mark.parametrize("config", [*GAMES, *TERSE_GAMES], ids=lambda game: game.kind)
def test_a_game_goes_on_after_a_pickle(config: GameConfig) -> None:
    actions = [action for _, action in config.demonstrate(11, random.Random(0))]
    whole, resumed = config.build(), config.build()
    assert whole.reset(11) == resumed.reset(11)
    for action in actions:
        resumed = after_a_pickle(resumed)
        assert whole.step(action) == resumed.step(action)


def test_a_kind_chooses_its_game_and_takes_its_fields_alone() -> None:
    adapter: TypeAdapter[EnvironmentConfig] = TypeAdapter(EnvironmentConfig)
    assert adapter.validate_python({"kind": "guess", "largest": 10}) == GuessConfig(largest=10)
    with pytest.raises(ValidationError, match="buttons"):
        adapter.validate_python({"kind": "guess", "buttons": 2})
