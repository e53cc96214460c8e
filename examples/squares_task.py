"""A task: square numbers to work out, drawn without end.

A task's configuration gives its rows as a function of itself and of the seed alone, so that every
process makes the same ones. `generate` keeps one question in eight for the evaluation.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.datasets.rows import Dataset, Row, generate, question_row


class SquaresConfig(BaseModel):
    """Squares of whole numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["squares"] = Field("squares", description="Chooses squares to work out.")
    num_prompts: int = Field(1024, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(64, ge=0, description="Questions to evaluate on.")
    largest: int = Field(99, ge=20, description="The largest number to square.")

    def load(self, seed: int) -> Dataset:
        def draw(rng: random.Random) -> Row:
            number = rng.randint(0, self.largest)
            return question_row("squares", f"What is {number} times {number}?", str(number**2))

        return generate("squares", draw, seed, self.num_prompts, self.heldout_prompts)
