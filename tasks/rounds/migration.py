"""Bookkeeping of responses that change engines in mid-round, of engines that are lost, and of
devices that go over from generating to training.

    move(ids), leave(decision, ids) -> (the ids are aborted) -> part(partial responses)
        ├-> resume(request): the rest is generated elsewhere
        └-> freed(): the decisions whose engines are empty now -> Freeing.begin -> learners begin
    (an engine is lost) -> hand_over(what it had reported), find(what was recorded of its episodes)
        -> resume(request)

A response keeps its tokens, their log-probabilities and versions; the new engine computes the
prompt and them again (one prefill), which restores the distribution of the next token exactly, so
that migration changes nothing about what is sampled.

The number of tokens that are lost with an engine can be bounded only. An engine reports on all its
responses at a time, every `report_tokens` of its steps, and a step gives a response at most one
token: each loses at most that many, and no more than it had left to its own bound. Tokens after a
link broke, behind which an engine lives on, are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from artifacts.new_tokens import NewTokens, PartialResponse
from artifacts.records import Generated, Request
from tasks.scheduling.stream_training import ScaleDown


class Migration:
    """Tracks the responses of one round that change engines."""

    def __init__(self) -> None:
        # partial responses whose continuation has not come back
        self.kept: dict[str, Generated] = {}
        self.moved: list[Generated] = []  # partial responses as the engines handed them over
        self._moving: set[str] = set()
        self._leaving: list[ScaleDown] = []

    def leave(self, decision: ScaleDown, response_ids: Iterable[str]) -> None:
        """Note that these responses are to leave the engines of this decision."""
        self._leaving.append(decision)
        self.move(response_ids)

    @property
    def is_moving(self) -> bool:
        """True while an engine has yet to hand a response over."""
        return bool(self._moving)

    def move(self, response_ids: Iterable[str]) -> None:
        """Note that these responses are to go on in another engine."""
        self._moving |= set(response_ids)

    def part(self, partial: Iterable[Generated]) -> list[Generated]:
        """Keep unfinished responses that engines handed back. Returns those that were to move; the
        engines gave up the others."""
        moving = []
        for response in partial:
            self.kept[response.response_id] = response
            if response.response_id in self._moving:
                moving.append(response)
        self.moved += moving
        self.stay(response.response_id for response in moving)
        return moving

    def hand_over(self, reported: Generated) -> None:
        """Keep the part of a response that its engine had reported when it was lost."""
        self.find(reported)
        self.moved.append(reported)

    def find(self, found: Generated) -> None:
        """Keep this part of a response that no engine generates, unless a longer one is kept."""
        kept = self.kept.get(found.response_id)
        if kept is None or kept.num_sampled <= found.num_sampled:
            self.kept[found.response_id] = found

    def finish(self, response_id: str) -> None:
        """Forget a response that has come back with every kept token."""
        self.kept.pop(response_id, None)
        self._moving.discard(response_id)

    def stay(self, response_ids: Iterable[str]) -> None:
        """Note that these responses no longer move."""
        self._moving -= set(response_ids)

    def resume(self, request: Request) -> Request:
        """The request with the kept part of its response. Unchanged if nothing is kept, or if the
        kept part leaves no room for more tokens, because a resumed run has a lower bound."""
        kept = self.kept.get(request.response_id)
        if kept is None:
            return request
        is_over = not 0 < len(kept.token_ids) < request.max_new_tokens
        if kept.episode is not None:  # may end at the bound
            is_over = len(kept.token_ids) > request.max_new_tokens
        if is_over:
            return request
        return replace(
            request,
            kept_tokens=kept.token_ids,
            kept_logprobs=kept.logprobs,
            kept_versions=kept.versions,
            kept_episode=kept.episode,
        )

    def emptied(self, is_empty: Callable[[str], bool]) -> list[ScaleDown]:
        """Return the decisions whose engines have handed over every response, each decision once.
        is_empty: True if nothing runs on the engine with this name."""
        done = [decision for decision in self._leaving if all(map(is_empty, decision.engines))]
        self._leaving = [decision for decision in self._leaving if decision not in done]
        return done


class ReportedTokens:
    """The tokens that engines reported of running responses, and bounds on those that were lost."""

    def __init__(self, report_tokens: int) -> None:
        """report_tokens: steps of an engine between two of its reports; 0 without reports."""
        self.num_interrupted = 0  # responses that ran on an engine when it was lost
        self.interrupted: list[str] = []  # these engines
        # the most tokens that each of these responses lost; empty without reports
        self.lost_tokens_bounds: list[int] = []
        self._report_tokens = report_tokens
        self._reported: dict[str, PartialResponse] = {}

    def keep(self, request: Request, new: NewTokens) -> NewTokens | None:
        """Keep new tokens of a request's response. Returns the tokens to record: the first time
        those from the beginning of the response on; None if the new tokens do not follow the known
        ones."""
        known = self._reported.get(new.response_id)
        if known is not None:
            return new if known.extend(new) else None
        first = new.from_start(request)
        if first is not None:
            self._reported[new.response_id] = PartialResponse(first)
        return first

    def forget(self, response_id: str) -> None:
        """Forget a response whose engine has handed over all of it."""
        self._reported.pop(response_id, None)

    def lose(self, engine: str, requests: Iterable[Request]) -> list[Generated]:
        """Count requests that were lost with their engine; returns the reported parts."""
        partial: list[Generated] = []
        for request in requests:
            num_known = len(request.kept_tokens)
            reported = self._reported.pop(request.response_id, None)
            if reported is not None:
                partial.append(reported.generated())
                num_known = len(partial[-1].token_ids)
            self.num_interrupted += 1
            if engine not in self.interrupted:
                self.interrupted.append(engine)
            if self._report_tokens:
                bound = min(self._report_tokens, request.max_new_tokens - num_known)
                self.lost_tokens_bounds.append(max(0, bound))
        return partial


class Freeing:
    """Hands devices of one round over from generating to training, while the round goes on."""

    def __init__(
        self, on_freed: Callable[[ScaleDown], Awaitable[None]], elapsed_s: Callable[[], float]
    ) -> None:
        """on_freed: puts the engines of a decision to sleep; elapsed_s: seconds of the round."""
        self.learners: list[str] = []  # learners whose devices were freed, in this order
        self.freed_s: list[float] = []  # when each of these was, seconds of the round
        self._on_freed = on_freed
        self._elapsed_s = elapsed_s
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, decision: ScaleDown) -> None:
        """Free the devices of this decision in the background; its engines must be empty."""
        self._tasks.append(asyncio.create_task(self.free(decision)))

    async def free(self, decision: ScaleDown) -> None:
        """Free the devices of this decision, whose engines must be empty, for its learners."""
        await self._on_freed(decision)
        self.learners += decision.learners
        self.freed_s += [self._elapsed_s()] * len(decision.learners)

    def check(self) -> None:
        """Raise the error of a device that could not be freed, if there is one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def finish(self) -> None:
        """Wait until all devices are freed; raises the error of one that could not be."""
        await asyncio.gather(*self._tasks)

    async def stop(self, within_s: float) -> None:
        """After a failure: wait up to within_s for devices to be freed, cancel the rest, and ignore
        errors."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
