"""How long simulated responses get."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tasks.scheduling.prompt_stream import derive_seed


class Lengths(Protocol):
    """How long responses get."""

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """The length of a response, the same whenever and wherever it is generated with this
        noise."""
        ...


class LengthModel(BaseModel):
    """Response lengths: log-normal, and a prompt's responses resemble each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        """The length of a response, the same whenever and wherever it is generated with this
        noise."""
        shared = np.random.default_rng(
            derive_seed(self.seed, "prompt", prompt_id)
        ).standard_normal()
        own = np.random.default_rng(
            derive_seed(self.seed, "response", prompt_id, index, noise)
        ).standard_normal()
        normal = self.prompt_share**0.5 * shared + (1 - self.prompt_share) ** 0.5 * own
        return max(1, round(self.median_tokens * float(np.exp(self.sigma * normal))))
