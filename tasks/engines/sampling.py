"""How responses are sampled."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

LEAST_TEMPERATURE = 0.01  # vLLM takes this one for any that is lower and not 0


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

    @field_validator("temperature")
    @classmethod
    def _is_sampled_at(cls, temperature: float) -> float:
        if 0 < temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 or at least {LEAST_TEMPERATURE:g}, which engines take for"
                f" any between, got {temperature:g}; raise it"
            )
        return temperature
