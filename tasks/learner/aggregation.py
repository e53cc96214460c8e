"""How the tokens of an update are weighted into one number.

Everything is a sum with its normaliser: the loss of an update is sum(weight * token loss) /
sum(normaliser), both over all ranks, divided once (invariants 4 and 5, docs/architecture.md). Its
tokens are those that the model sampled (invariant 14). Leaves out the division, which is the
trainer's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class TokenMean(BaseModel):
    """Every token counts the same: long responses weigh more than short ones."""

    model_config = _FROZEN

    kind: Literal["token_mean"] = Field(
        default="token_mean", description="Mean over all tokens of the update."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0, float(num_tokens)


class SequenceMean(BaseModel):
    """Every response counts the same, an episode as one: the mean over responses of the mean over
    their tokens (GRPO as published)."""

    model_config = _FROZEN

    kind: Literal["sequence_mean"] = Field(
        default="sequence_mean", description="Mean over responses of their tokens' mean."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / num_tokens, 1.0


class ConstantLength(BaseModel):
    """Token sums over a constant, then the mean over responses (Dr.GRPO): no reward for being short
    or long."""

    model_config = _FROZEN

    kind: Literal["constant"] = Field(
        default="constant", description="Mean over responses of their token sum over a constant."
    )
    length_tokens: int = Field(
        default=256, ge=1, description="The constant; usually the bound on response tokens."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / self.length_tokens, 1.0


AggregationConfig = Annotated[
    TokenMean | SequenceMean | ConstantLength, Field(discriminator="kind")
]
"""`of(num_tokens)` gives a response's weight per token and its addition to the normaliser."""
