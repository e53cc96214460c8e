"""The presets of tiny models that learn something other than sums: a game, a tool, to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.config.overlay import overlay
from flows.config.paper_presets import Values


def tiny_agent() -> Values:
    """A Llama of a million parameters that knows the moves of a guessing game, heeds what they are
    answered sometimes, and learns in a minute to do so always."""
    game = {"kind": "guess", "style": "terse", "largest": 8, "max_turns": 4}
    changes = {
        "num_steps": 24,
        "model": {"profile": "heedful"},
        "episodes": {"max_turn_tokens": 4},
        "batch": {"prompts_per_step": 64},
        "sampling": {"max_response_tokens": 32},
        "engine": {"max_model_len": 64},
    }
    return overlay(_tiny_player("guess", game), changes)


def tiny_tools() -> Values:
    """A Llama of a million parameters that can write to a calculator, cannot calculate, and learns
    to ask before it answers."""
    questions = {"kind": "arithmetic", "term_weights": [1.0], "largest_term": 99}
    game = {"kind": "tools", "style": "terse", "max_turns": 4, "questions": questions}
    changes = {
        "num_steps": 30,
        "episodes": {"max_turn_tokens": 8},
        "batch": {"prompts_per_step": 32},
        "sampling": {"max_response_tokens": 64},
        "engine": {"max_model_len": 96},
    }
    return overlay(_tiny_player("sums", game), changes)


def tiny_vision() -> Values:
    """A Qwen2.5-VL of a million parameters that knows how to answer questions about shapes, is
    often wrong, and learns to be right."""
    return {
        "num_steps": 100,
        "model": {"kind": "tiny_vision"},
        "task": {"kind": "shapes", "style": "terse"},
        "sampling": {"max_response_tokens": 8},
        "engine": {"max_model_len": 64},
        "learner": {"optimizer": {"learning_rate": 3e-4, "decay_steps": 100}},
        "evaluation": {"num_prompts": 128, "responses_per_prompt": 4},
    }


def _tiny_player(domain: str, game: Values) -> Values:
    """A tiny Llama that is warmed up on valid moves of this game, and plays it."""
    return {
        "model": {"kind": "tiny_player", "game": game},
        "task": {"kind": "seeds", "domain": domain},
        "environments": {domain: game},
        "rewards": {"*": {"kind": "episode"}},
        "batch": {"responses_per_prompt": 4},
        "evaluation": {"num_prompts": 128, "responses_per_prompt": 4},
        "learner": {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 10}},
        "keep": {"checkpoint_every_steps": 20},
    }


# each by the preset that its values are laid over
LEARNERS: Mapping[Callable[[], Values], str] = {
    tiny_agent: "tiny-sync",
    tiny_tools: "tiny-sync",
    tiny_vision: "tiny-sync",
}
