"""The reward stage of a run that is played again: every verdict comes so long after its response as
it was recorded, whoever waits for it.

    publish ─▶ recorded seconds ─▶ scored

A verdict goes on when the round that published its response is over, as that of a service or of a
judge does: the next round, which publishes it again, waits for what is left. (A program is begun
anew by the real pool; what that takes is left out.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from artifacts.records import Generated, Outcome, Score
from tasks.engines.mailbox import Mailbox


class ScoredRecord(Protocol):
    """What was recorded of verdicts."""

    def reward(self, seed: int, prompt_id: str, index: int, *, is_cut: bool) -> float:
        """Of a response; is_cut: whether the bound on tokens ends it."""
        ...

    def scored_s(self, prompt_id: str, index: int, seed: int) -> float:
        """Seconds from its last token to its verdict."""
        ...


class RecordedFeed:
    """A `ScoreFeed` on the event loop's clock."""

    def __init__(self, record: ScoredRecord, seed: int) -> None:
        self._record = record
        self._seed = seed
        # when the verdict comes, by response and its end: what is asked anew ends at another time
        self._due_s: dict[tuple[str, float], float] = {}
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        loop = asyncio.get_running_loop()
        for response in generated:
            now_s, name = loop.time(), (response.response_id, response.finished_s)
            took_s = self._record.scored_s(response.prompt_id, response.index, self._seed)
            due_s = self._due_s.setdefault(name, now_s + took_s)
            score = self._score(response, now_s, max(now_s, due_s))
            loop.call_at(score.finished_s, self._scores.put, score)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)

    def _score(self, response: Generated, started_s: float, finished_s: float) -> Score:
        is_cut = response.finish_reason == "length"
        name = response.prompt_id, response.index
        reward = self._record.reward(self._seed, *name, is_cut=is_cut)
        return Score(
            prompt_id=response.prompt_id,
            index=response.index,
            reward=reward,
            outcome=Outcome.OK if reward > 0 else Outcome.WRONG,
            detail="simulated",
            scorer="simulated",
            started_s=started_s,
            finished_s=finished_s,
        )
