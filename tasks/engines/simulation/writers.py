"""The text and the length of simulated responses.

    request ──▶ Writer ──▶ length, tokens, text: a function of the request and its noise alone

`BlankWriter` repeats one token to the length that its `Lengths` give. `ChainSumWriter` works out
the questions of the task chain_sum and sometimes errs, so that a run on simulated engines has real
tokens, rewards and groups. It reads the question, never the reference answer.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.chain_sum import demonstration
from artifacts.records import Request
from tasks.engines.chat_tokens import chat_tokens
from tasks.scheduling.prompt_stream import derive_seed


class Lengths(Protocol):
    """The lengths of simulated responses."""

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """The length of a response: a function of its arguments, whichever engine generates it."""


class LengthModel(FrozenConfig):
    """Log-normal response lengths, correlated within a prompt."""

    median_tokens: float = Field(
        500.0, ge=1, description="Median length of a response before the request's bound cuts it."
    )
    sigma: float = Field(
        1.0, ge=0, description="Standard deviation of the logarithm of the length."
    )
    prompt_share: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Share of that variance which all responses of a prompt have in common.",
    )
    seed: int = Field(0, ge=0, description="Seed of all lengths.")

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        shared = _normal(derive_seed(self.seed, "prompt", prompt_id))
        own = _normal(derive_seed(self.seed, "response", prompt_id, index, noise))
        normal = self.prompt_share**0.5 * shared + (1 - self.prompt_share) ** 0.5 * own
        return max(1, round(self.median_tokens * float(np.exp(self.sigma * normal))))


def _normal(seed: int) -> float:
    return np.random.default_rng(seed).standard_normal()


BLANK = 1  # the token that a blank response repeats


class Writer(Protocol):
    """Writes the response to a request; the same request and noise give the same response."""

    def num_tokens(self, request: Request, noise: int) -> int:
        """The length of the response if nothing bounds it, its end token included."""

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        """The first num_tokens tokens of the response."""

    def text(self, tokens: tuple[int, ...]) -> str:
        """Decode these tokens."""


@dataclass(frozen=True, slots=True)
class BlankWriter:
    """Writes one token over and over."""

    lengths: Lengths

    def num_tokens(self, request: Request, noise: int) -> int:
        return self.lengths.tokens(request.prompt_id, request.index, noise)

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return (BLANK,) * num_tokens

    def text(self, tokens: tuple[int, ...]) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class ChainSumWriter:
    """Adds the terms of a question one by one, as the demonstrations of the tiny model do."""

    wrong_share: float  # probability that a step is wrong
    ramble_share: float  # share of the responses that go on past the last term
    tokenizer: Any  # Any: transformers' tokenizers have no useful common type

    def num_tokens(self, request: Request, noise: int) -> int:
        return len(self._write(request, noise))

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return self._write(request, noise)[:num_tokens]

    def text(self, tokens: tuple[int, ...]) -> str:
        return chat_tokens(self.tokenizer).decode(tokens)

    def _write(self, request: Request, noise: int) -> tuple[int, ...]:
        question = self.text(request.prompt_tokens)
        terms = [int(term) for term in re.findall(r"[a-z](\d+)", question)]
        if not terms:
            raise ValueError(
                "engine.responses=chain_sums answers questions of the task chain_sum alone, got"
                f" {question[:60]!r}; choose that task, or engine.responses=nothing"
            )
        draws = random.Random(derive_seed(noise, "response", request.prompt_id, request.index))
        said = demonstration(terms, draws, self.wrong_share, self.ramble_share)
        tokens = self.tokenizer.encode(said, add_special_tokens=False)
        return (*tokens, self.tokenizer.eos_token_id)
