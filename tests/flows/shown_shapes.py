"""Two questions about drawn shapes, one after the other, for runs whose observations are
pictures."""

from __future__ import annotations

from artifacts.datasets.shapes import ShapesConfig, drawn
from tasks.environments.base import PicturedText, Transition

NUM_QUESTIONS = 2


class ShownShapes:
    """The reward of a turn is 1 for the right number."""

    def reset(self, seed: int) -> str:
        asked = ShapesConfig(style="terse", num_prompts=NUM_QUESTIONS, heldout_prompts=0)
        self._rows = list(asked.load(seed).rows)
        return self._ask()

    def step(self, text: str) -> Transition:
        right = self._rows.pop(0).gold
        is_over = not self._rows
        said = "." if is_over else self._ask()
        return Transition(said, float(text.strip("\nAnswer: ") == right), is_over, False, {})

    def _ask(self) -> str:
        row = self._rows[0]
        return PicturedText.of(row.text, map(drawn, row.pictures))
