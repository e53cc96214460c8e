"""How responses are sampled."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SamplingConfig(BaseModel):
    """The distribution that rollouts are drawn from; the learner's temperature must be the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(
        1.0,
        ge=0,
        description="Divides the logits; 0 is greedy and gives a group nothing to compare.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Nucleus bound; a run needs 1, because the learner scores the whole distribution."
        ),
    )
    max_response_tokens: int = Field(
        256, ge=1, description="Bound on the generated tokens of a response."
    )
