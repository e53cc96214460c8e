"""What simulated responses say.

    request ──▶ Writer ──▶ length, tokens, text: a function of the request and its noise alone

`BlankWriter` says nothing, for as long as its `Lengths` have it: for rounds whose rewards are
simulated, too. `ChainSumWriter` works out the questions of the task chain_sum and errs now and
then, so that a whole run on simulated engines has real tokens, real rewards and groups that
disagree. It reads the question and never the answer. Neither looks at the weights: a simulated
policy does not learn.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any, Protocol

from artifacts.datasets.chain_sum import demonstration
from artifacts.records import Request
from tasks.engines.chat_tokens import chat_tokens
from tasks.engines.simulation.lengths import Lengths
from tasks.scheduling.prompt_stream import derive_seed

BLANK = 1  # the token that a blank response repeats


class Writer(Protocol):
    """Writes the response to a request; the same one whenever it is asked with the same noise."""

    def num_tokens(self, request: Request, noise: int) -> int:
        """The length of the response if nothing bounds it, its end token included."""
        ...

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        """The first num_tokens of the response."""
        ...

    def text(self, tokens: tuple[int, ...]) -> str:
        """These tokens decoded."""
        ...


@dataclass(frozen=True, slots=True)
class BlankWriter:
    """One token over and over."""

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
