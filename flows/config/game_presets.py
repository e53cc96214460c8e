"""The presets of models that play against environments, in episodes of several turns."""

from __future__ import annotations

from flows.config.overlay import Values, overlay
from flows.config.smollm2_presets import smollm2_answers
from flows.config.tiny_presets import tiny_sync


def agent() -> Values:
    """SmolLM2-135M-Instruct learns a game of several turns in a few minutes: guess a number from 1
    to 20 in five tries, told whether it is higher or lower."""
    return overlay(
        smollm2_answers(),
        {
            "preset": "agent",
            "task": {"kind": "seeds", "domain": "guess"},
            "environments": {"guess": {"kind": "guess", "largest": 20, "max_turns": 5}},
            "episodes": {"max_turn_tokens": 8},
            "rewards": {"*": {"kind": "episode"}},
            # many prompts with few responses: which guess is rewarded differs from prompt to prompt
            "batch": {"prompts_per_step": 16, "responses_per_prompt": 4},
            "scheduling": {"kind": "sync"},
            "sampling": {"max_response_tokens": 128},
            "engine": {"max_model_len": 512},
            "learner": {"optimizer": {"learning_rate": 5e-5}},
        },
    )


def tiny_agent() -> Values:
    """A Llama of a million parameters that knows the moves of a guessing game, heeds what they are
    answered sometimes, and learns in a minute to do so always."""
    game = {"kind": "guess", "style": "terse", "largest": 8, "max_turns": 4}
    return overlay(
        _tiny_player("guess", game),
        {
            "preset": "tiny-agent",
            "num_steps": 24,
            "model": {"profile": "heedful"},
            "episodes": {"max_turn_tokens": 4},
            "batch": {"prompts_per_step": 64},
            "sampling": {"max_response_tokens": 32},
            "engine": {"max_model_len": 64},
        },
    )


def tiny_tools() -> Values:
    """A Llama of a million parameters that can write to a calculator, cannot calculate, and learns
    to ask before it answers."""
    questions = {"kind": "arithmetic", "term_weights": [1.0], "largest_term": 99}
    game = {"kind": "tools", "style": "terse", "max_turns": 4, "questions": questions}
    return overlay(
        _tiny_player("sums", game),
        {
            "preset": "tiny-tools",
            "num_steps": 30,
            "episodes": {"max_turn_tokens": 8},
            "batch": {"prompts_per_step": 32},
            "sampling": {"max_response_tokens": 64},
            "engine": {"max_model_len": 96},
        },
    )


def _tiny_player(domain: str, game: Values) -> Values:
    """A Llama of a million parameters, warmed up on valid moves of this game, which it plays."""
    return overlay(
        tiny_sync(),
        {
            "model": {"kind": "tiny_player", "game": game},
            "task": {"kind": "seeds", "domain": domain},
            "environments": {domain: game},
            "rewards": {"*": {"kind": "episode"}},
            "batch": {"responses_per_prompt": 4},
            "learner": {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 10}},
            "keep": {"checkpoint_every_steps": 20},
        },
    )
