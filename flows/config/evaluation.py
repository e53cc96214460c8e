"""Configuration of held-out evaluations: how many prompts are asked, and when."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EvaluationConfig(BaseModel):
    """Held-out prompts, asked before the first step and after the last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_prompts: int = Field(
        64, ge=2, description="Held-out prompts to ask, the same ones each time."
    )
    responses_per_prompt: int = Field(
        4,
        ge=1,
        description="Responses sampled for each held-out prompt; their mean is the prompt's score.",
    )
    every_steps: int = Field(
        0,
        ge=0,
        description=(
            "Evaluate after every so many steps as well; 0 means only before and after the run."
        ),
    )
