"""The demonstrations that tiny models are warmed up on: worked answers to the task chain_sum, or
episodes of a game in which every move is valid.

Chain sums are free of errors at first, so that a model finds the rule. In the last quarter a known
share of steps is wrong, so that sampling errs while the most likely answer is mostly right. The
moves of a game are drawn from the valid ones: the model learns the form of an action and what
follows from it, and not which one to choose; in some games a share of the episodes takes the game's
answers into account. Either way, reinforcement learning has something left to improve.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from artifacts.datasets.chain_sum import demonstration, draw_training_terms, question
from artifacts.models.registry import TinyAdderConfig, TinyPlayerConfig
from tasks.environments.episodes.bridge import make_bridge
from tasks.environments.games.game import GameConfig
from tasks.environments.registry import EnvironmentConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# draws more long chains than any task does: they hold most of the steps to learn from
TRAINING_ALPHA = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A demonstration as token ids."""

    token_ids: tuple[int, ...]  # all of it
    is_learned: tuple[bool, ...]  # of each token, whether the model is to predict it

    @property
    def num_learned(self) -> int:
        return sum(self.is_learned)

    @classmethod
    def of(cls, parts: Iterable[tuple[tuple[int, ...], bool]]) -> Example:
        """Join parts, in order, to an example. A part is (token ids, whether the model is to
        predict them)."""
        parts = list(parts)
        return cls(
            token_ids=tuple(index for ids, _ in parts for index in ids),
            is_learned=tuple(is_learned for ids, is_learned in parts for _ in ids),
        )


Draw = Callable[[random.Random, bool], Example]  # (its noise, whether it must be clean)


def demonstrations_of(
    config: TinyAdderConfig | TinyPlayerConfig, tokenizer: PreTrainedTokenizerBase
) -> Draw:
    """Return what draws demonstrations for a tiny model. Raises ValueError as `game_of`."""
    if isinstance(config, TinyPlayerConfig):
        return _episodes(game_of(config), config.heedful_share, tokenizer)
    return _chain_sums(config, tokenizer)


def _chain_sums(config: TinyAdderConfig, tokenizer: PreTrainedTokenizerBase) -> Draw:
    def draw(rng: random.Random, is_clean: bool) -> Example:
        shares = (0.0, 0.0) if is_clean else (config.wrong_share, config.ramble_share)
        terms = draw_training_terms(rng, TRAINING_ALPHA)
        prompt = _encode(tokenizer, f"{tokenizer.bos_token}{question(terms)}")
        response = _encode(tokenizer, f"{demonstration(terms, rng, *shares)}{tokenizer.eos_token}")
        return Example.of([(prompt, False), (response, True)])

    return draw


def _episodes(game: GameConfig, heedful_share: float, tokenizer: PreTrainedTokenizerBase) -> Draw:
    end = int(tokenizer.eos_token_id)
    bridge = make_bridge(tokenizer, (end,), game.head(), "the tiny model")

    def draw(rng: random.Random, is_clean: bool) -> Example:
        parts = [(bridge.head, False)]
        is_heedful = heedful_share > 0 and rng.random() < heedful_share
        for observation, action in game.demonstrate(
            rng.randrange(2**31), rng, is_heedful=is_heedful
        ):
            is_first = len(parts) == 1
            given = bridge.first(observation) if is_first else bridge.next(observation, end)
            parts += [(given, True), ((*_encode(tokenizer, action), end), True)]
        return Example.of(parts)

    return draw


def game_of(config: TinyPlayerConfig) -> GameConfig:
    """The game that a player is warmed up on. Raises ValueError for a game whose valid moves are
    not known, or which lacks the heedful moves that the configuration wants."""
    try:
        game = TypeAdapter[EnvironmentConfig](EnvironmentConfig).validate_python(config.game)
    except ValidationError as error:
        raise ValueError(
            f"model.game must be an environment as under environments, got {dict(config.game)}"
            f" ({error.errors()[0]['msg']}); write it as there"
        ) from error
    if not isinstance(game, GameConfig):
        raise ValueError(
            f"model.game must be a game whose valid moves are known, got kind {game.kind!r}; choose"
            " one of the games, or another model"
        )
    if config.heedful_share and not game.knows_heedful_moves:
        raise ValueError(
            f"heedful_share of model.profile must be 0 with the game {game.kind!r}, which knows no"
            f" heedful moves, got {config.heedful_share:g}; take the profile usual, or the game"
            " guess"
        )
    return game


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
