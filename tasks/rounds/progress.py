"""Whether a round still moves: a token, a finished response or a verdict within the deadline. Pure.

    at every response and verdict:   heard(now)
    when it has been quiet a while:  is_look_due(now) ─▶ ask the engines ─▶ look(reading, now) each

Tokens are looked for only when nothing else has happened for a quarter of the deadline, so that a
busy round costs its engines no call, and a stall is noticed a quarter late at most.
"""

from __future__ import annotations

from tasks.engines.base import EngineStats

LOOKS = 4  # within one deadline


class Progress:
    """Watches over one wait, which begins now."""

    def __init__(self, deadline_s: float, now_s: float) -> None:
        self._deadline_s = deadline_s
        self._generated: dict[str, int] = {}  # tokens since its start, by engine, at the last look
        self._in_work: dict[str, int] = {}  # tokens of its unfinished responses, likewise
        self.heard(now_s)

    def heard(self, now_s: float) -> None:
        """Something happened."""
        self._ends_s = now_s + self._deadline_s
        self._look_s = now_s + self._deadline_s / LOOKS

    def look(self, reading: EngineStats, now_s: float) -> None:
        """How far an engine has come; the first look at it tells only where it stands."""
        before = self._generated.get(reading.engine, reading.tokens_generated)
        self._generated[reading.engine] = reading.tokens_generated
        self._in_work[reading.engine] = sum(reading.progress.values())
        self._look_s = now_s + self._deadline_s / LOOKS
        if reading.tokens_generated > before:
            self.heard(now_s)

    def is_look_due(self, now_s: float) -> bool:
        """Whether it has been quiet for so long that the engines are worth asking."""
        return now_s >= self._look_s

    def is_over(self, now_s: float) -> bool:
        """Whether the deadline has passed."""
        return now_s >= self._ends_s

    def wait_s(self, now_s: float) -> float:
        """How long to wait before looking at the clock again."""
        soonest_s = self._ends_s if self.is_look_due(now_s) else min(self._ends_s, self._look_s)
        return max(0.0, soonest_s - now_s)

    def tokens_on(self, engine: str) -> int:
        """Tokens of the engine's unfinished responses when it was last looked at."""
        return self._in_work.get(engine, 0)
