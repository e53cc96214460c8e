"""An environment that a model sees: walk to a goal on a square of fields.

    rollflow check environment examples.walk_environment:Walk --action up --action left

An observation is a pair of a text, here none, and the pictures above it, as files.
"""

from __future__ import annotations

import io
import random

from PIL import Image, ImageDraw

MOVES = {"left": (-1, 0), "right": (1, 0), "down": (0, 1), "up": (0, -1)}
FIELD = 28  # pixels of a field's side
Seen = tuple[str, list[bytes]]


class Walk:
    """One walk at a time. A move against the wall changes nothing."""

    rules = "Walk, the red disc, to the green field. Reply with left, right, down or up."

    def __init__(self, size: int = 4, moves: int = 10) -> None:
        self.size, self.moves = size, moves

    def reset(self, seed: int) -> Seen:
        places = random.Random(seed).sample(range(self.size**2), 2)
        self.place, self.goal = (divmod(place, self.size) for place in places)
        self.left = self.moves
        return self.seen()

    def step(self, text: str) -> tuple[Seen, float, bool, bool, dict[str, str]]:
        by = MOVES.get(text.strip(" ."), (0, 0))
        x, y = (min(max(a + b, 0), self.size - 1) for a, b in zip(self.place, by, strict=True))
        self.place, self.left = (x, y), self.left - 1
        is_there = self.place == self.goal
        return self.seen(), float(is_there), is_there, self.left == 0 and not is_there, {}

    def seen(self) -> Seen:
        picture = Image.new("RGB", (self.size * FIELD, self.size * FIELD), "white")
        canvas, file = ImageDraw.Draw(picture), io.BytesIO()
        for (x, y), round_by, ink in ((self.goal, 0, "green"), (self.place, 9, "red")):
            corners = (FIELD * x + 4, FIELD * y + 4, FIELD * x + 23, FIELD * y + 23)
            canvas.rounded_rectangle(corners, round_by, fill=ink)
        picture.save(file, format="PNG")
        return "", [file.getvalue()]
