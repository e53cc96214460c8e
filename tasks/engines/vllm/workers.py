"""How vLLM's workers are reached, one in the process of every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Told = TypeVar("Told")


class VllmWorkers(Protocol):
    """As much of vLLM's `LLM` and `LLMEngine` as reaches all of them."""

    def collective_rpc(self, method: Callable[[Any], Told]) -> list[Told]:  # Any: vLLM's worker
        """What the function says of every worker."""
        ...
