"""How long a run waits for anything, before it says what it waited for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class DeadlineConfig(BaseModel):
    """How long a wait may last before the run says what it waited for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress_s: float = Field(
        300.0,
        gt=0,
        description="A round without a token, a response or a verdict for so long ends, seconds.",
    )
    engine_call_s: float = Field(
        300.0, gt=0, description="Bound on one call to an engine, seconds."
    )
    learner_call_s: float = Field(
        900.0,
        gt=0,
        description=(
            "Bound on one call to a learner rank, seconds: an accumulation, or all updates of a"
            " step."
        ),
    )
    start_s: float = Field(
        600.0,
        gt=0,
        description=(
            "Bound on starting engines and learners, the loading of the model included, seconds."
        ),
    )
