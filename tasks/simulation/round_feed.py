"""The reward stage of a whole run, as its rounds see it one after the other.

What a round did not wait for may still be told when the next one runs: it is nobody's then, though
the next round may wait for a response of the same name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from artifacts.records import Generated, Score, response_id
from tasks.rounds.records import ScoreFeed


class RoundFeed:
    """A `ScoreFeed` that tells each round of its own responses alone. Verdicts on responses of one
    name come in the order in which those were published."""

    def __init__(self, feed: ScoreFeed) -> None:
        self._feed = feed
        self._awaited: Counter[str] = Counter()  # published by this round, not told
        self._stale: Counter[str] = Counter()  # published by earlier ones, not told
        self._attempt = 0  # of this round, whoever asked for what it publishes

    def open_round(self) -> None:
        """Nobody waits any more for what the round before published."""
        self._stale.update(self._awaited)
        self._awaited.clear()
        self._attempt += 1

    async def publish(self, generated: Sequence[Generated]) -> None:
        self._awaited.update(response.response_id for response in generated)
        own = [replace(response, attempt=self._attempt) for response in generated]
        await self._feed.publish(own)

    async def scored(self, wait_s: float) -> list[Score]:
        clock = asyncio.get_running_loop().time
        until_s = clock() + wait_s
        while told := await self._feed.scored(until_s - clock()):
            if own := [score for score in told if self._is_own(score)]:
                return own
        return []

    def _is_own(self, score: Score) -> bool:
        name = response_id(score.prompt_id, score.index)
        if self._stale[name]:
            self._stale[name] -= 1
            return False
        self._awaited[name] -= 1
        return True
