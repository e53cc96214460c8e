"""A task: square numbers to work out, drawn without end.

    rollflow check dataset examples/squares_task.py:SquaresTask

A task gives its rows as a function of itself and of the seed alone, so that every
process makes the same ones. `generate` keeps one question in eight for the evaluation.
"""

from __future__ import annotations

import random

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Dataset, Row, generate, question_row


class SquaresTask(FrozenConfig):
    """Squares of whole numbers."""

    num_prompts: int = 1024  # questions to train on; `kwargs` sets each of these
    heldout_prompts: int = 64  # questions to evaluate on
    largest: int = 99  # number to square

    def load(self, seed: int) -> Dataset:
        def draw(rng: random.Random) -> Row:
            number = rng.randint(0, self.largest)
            return question_row("squares", f"What is {number} times {number}?", str(number**2))

        return generate("squares", draw, seed, self.num_prompts, self.heldout_prompts)
