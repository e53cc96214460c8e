"""What a replica reports of itself: counts of what has ended in it, with those of what runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from artifacts.records import Request
from tasks.engines.base import EngineStats
from tasks.engines.vllm.live import Live


class Gauges:
    """Counts for one engine."""

    def __init__(self) -> None:
        self._num_tokens = 0  # of what has ended
        self._num_preemptions = 0  # of what has ended, since the last load
        self._kv_usage_max = 0.0  # since the last load

    def note_step(self, kv_usage: float) -> None:
        """After a step, so without the blocks of what ended in it; where the cache runs full, that
        makes no difference."""
        self._kv_usage_max = max(self._kv_usage_max, kv_usage)

    def note_end(self, live: Live) -> None:
        """A response is over."""
        self._num_tokens += len(live.new_tokens)
        self._num_preemptions += live.num_preemptions

    def note_load(self, running: Iterable[Live]) -> None:
        """Weights are loaded; what runs has been preempted for them, which does not count."""
        self._num_preemptions = 0
        self._kv_usage_max = 0.0
        for live in running:
            live.forget_preemptions()

    def read(
        self, engine: str, kv_tokens: int, running: Collection[Live], waiting: Iterable[Request]
    ) -> EngineStats:
        """A reading, with what runs in vLLM and what waits to enter it."""
        begun = {live.request.response_id: live.num_tokens for live in running}
        to_begin = {request.response_id: len(request.kept_tokens) for request in waiting}
        return EngineStats(
            engine=engine,
            kv_usage_max=self._kv_usage_max,
            kv_tokens=kv_tokens,
            progress=begun | to_begin,
            num_preemptions=self._num_preemptions + sum(live.num_preemptions for live in running),
            tokens_generated=self._num_tokens + sum(len(live.new_tokens) for live in running),
        )
