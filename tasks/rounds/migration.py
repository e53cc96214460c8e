"""Responses that change engines in mid-round: what they keep, and which engines are being emptied.
Pure bookkeeping.

    move(ids), leave(decision, ids) -> (the ids are aborted) -> part(partial responses)
        ├-> resume(request): the rest is generated elsewhere
        └-> freed(): the decisions whose engines are empty now
    (an engine is lost) -> hand_over(what it had told), find(what was written down of its episodes)
        -> resume(request)

A response keeps its tokens, their log-probabilities and versions; the new engine computes the
prompt and them again (one prefill), which restores the distribution of the next token exactly, so
that migration changes nothing about what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from artifacts.records import Generated, Request
from tasks.scheduling.stream_training import ScaleDown


class Migration:
    """Keeps the books on responses of one round that change engines."""

    def __init__(self) -> None:
        # partial responses whose continuation has not come home
        self.kept: dict[str, Generated] = {}
        self.moved: list[Generated] = []  # partial responses as the engines handed them over
        self._moving: set[str] = set()
        self._leaving: list[ScaleDown] = []

    def leave(self, decision: ScaleDown, response_ids: Iterable[str]) -> None:
        """These responses are to leave the decision's engines."""
        self._leaving.append(decision)
        self.move(response_ids)

    @property
    def is_moving(self) -> bool:
        """Whether an engine has yet to hand a response over."""
        return bool(self._moving)

    def move(self, response_ids: Iterable[str]) -> None:
        """These responses are to go on in another engine."""
        self._moving |= set(response_ids)

    def part(self, partial: Iterable[Generated]) -> list[Generated]:
        """Keep what came back unfinished; returns those of it that are on the move. The others were
        given up by their engine."""
        moving = []
        for response in partial:
            self.kept[response.response_id] = response
            if response.response_id in self._moving:
                moving.append(response)
        self.moved += moving
        self.stay(response.response_id for response in moving)
        return moving

    def hand_over(self, told: Generated) -> None:
        """An engine had told so much of this when it was lost."""
        self.find(told)
        self.moved.append(told)

    def find(self, found: Generated) -> None:
        """This is known of a response that no engine generates any more; it goes on from there,
        unless more is kept of it."""
        kept = self.kept.get(found.response_id)
        if kept is None or kept.num_sampled <= found.num_sampled:
            self.kept[found.response_id] = found

    def finish(self, response_id: str) -> None:
        """The response is home, with all that was kept of it."""
        self.kept.pop(response_id, None)
        self._moving.discard(response_id)

    def stay(self, response_ids: Iterable[str]) -> None:
        """These are on the move no more."""
        self._moving -= set(response_ids)

    def resume(self, request: Request) -> Request:
        """The request with what is kept of its response; as it is where that leaves no room for
        more, because a resumed run has a lower bound."""
        kept = self.kept.get(request.response_id)
        if kept is None or not _goes_on(kept, request.max_new_tokens):
            return request
        return replace(
            request,
            kept_tokens=kept.token_ids,
            kept_logprobs=kept.logprobs,
            kept_versions=kept.versions,
            kept_episode=kept.episode,
        )

    def freed(self, is_empty: Callable[[str], bool]) -> list[ScaleDown]:
        """The decisions whose engines have handed everything over; each is told once."""
        done = [decision for decision in self._leaving if all(map(is_empty, decision.engines))]
        self._leaving = [decision for decision in self._leaving if decision not in done]
        return done


def _goes_on(kept: Generated, max_new_tokens: int) -> bool:
    """Whether a response goes on within this bound; an episode may end at it."""
    if kept.episode is not None:
        return len(kept.token_ids) <= max_new_tokens
    return 0 < len(kept.token_ids) < max_new_tokens
