"""An engine: it repeats the question, a hundred tokens a second, on the simulated replica.

    rollflow check engine examples/echo_engine.py:EchoEngine

The settings of an engine build a `Replica` (tasks/engines/base.py). Here that is the simulated one
with a writer of our own, which has the batches, the aborts and the loading of weights already. An
engine that generates with a model implements the methods of `Replica` itself, as
tasks/engines/vllm/engine.py does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from artifacts.records import Request
from tasks.engines.base import Replica, ReplicaConfig
from tasks.engines.chat_tokens import chat_tokens
from tasks.engines.model_files import read_tokenizer
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig


class EchoEngine(ReplicaConfig):
    """Repeat the question."""

    token_s: float = 0.01  # seconds that a token takes; `kwargs` sets it

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> Replica:
        speed = SimulatedEngineConfig(max_model_len=self.max_model_len, step_s=self.token_s)
        writer = EchoWriter(read_tokenizer(model_path))
        epoch_s = time.time() - time.monotonic()
        return SimulatedEngine(name, speed, writer=writer, epoch_s=epoch_s)


class EchoWriter:
    """Writes the tokens of the prompt."""

    def __init__(self, tokenizer: Any) -> None:  # Any: transformers' tokenizers share no type
        self._tokenizer = tokenizer

    def num_tokens(self, request: Request, noise: int) -> int:
        return len(request.prompt_tokens)

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return request.prompt_tokens[:num_tokens]

    def text(self, tokens: tuple[int, ...]) -> str:
        return chat_tokens(self._tokenizer).decode(tokens)
