"""An environment: guess a number from 1 to 20 in five tries.

    rollflow check environment examples.guess_environment:Guess

`rules` and `examples` are what the model reads first; `step` takes whatever it says.
"""

from __future__ import annotations

import random

Turn = tuple[str, float, bool, bool, dict[str, str]]


class Guess:
    """One game at a time."""

    rules = "Guess my number from 1 to 20. Reply with a number."
    examples = (("Guess.", "10"), ("Higher.", "15"), ("Lower.", "12"))

    def reset(self, seed: int) -> str:
        self.secret = random.Random(seed).randint(1, 20)
        self.tries = 5
        return "Guess."

    def step(self, text: str) -> Turn:
        self.tries -= 1
        guess = int(text) if text.strip() in map(str, range(1, 21)) else 0
        if guess == self.secret:
            return "Right.", 1.0, True, False, {}
        hint = "Higher." if guess < self.secret else "Lower."
        return hint if guess else "Say a number.", 0.0, self.tries == 0, False, {}
