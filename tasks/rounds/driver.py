"""The driver of one round: carries out the scheduler's decisions on the engines, and turns their
answers into the scheduler's events.

    engines ── finished, lost ─┐                       ┌─ launch ─▶ tracker ─▶ engines
    feed ───── scored ─────────┼▶ events ─▶ scheduler ─┼─ abort ──▶ tracker
    records ── replayed ───────┤                       └─ accept ─▶ on_accept, stream trainer
    training ─ published ──────┘       elastic workers come and go: ─▶ tracker

One queue of events and one loop: an event is taken, the scheduler handles it, its answer is carried
out to the end, and only then is the next event taken. Carrying out an answer may append events, for
example if an engine is found lost, but never handles them. All launches and all aborts of one
answer go to an engine in one call, so that a round's opening is one batch per engine and always
samples the same tokens. Leaves out how the driver waits (`sources`) and the life of a response
between its launch and its end (`response_tracker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from artifacts.new_tokens import NewTokens
from artifacts.records import Generated, Response, Score, VersionSpan, response_id
from tasks.engines.base import EngineLost
from tasks.rounds.engine_pool import EnginePool
from tasks.rounds.finished_responses import FinishedResponses
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.rounds.response_tracker import ResponseTracker
from tasks.rounds.sources import EventSources
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    Carry,
    CloseRound,
    Decision,
    Event,
    Finished,
    Launch,
    OverlappedScheduler,
    Published,
    Scored,
)

logger = logging.getLogger(__name__)

STOP_S = 30.0  # how long engines may take to fall idle after a failure


async def drive_round(inputs: RoundInputs) -> RoundResult:
    """Play the round to its end. Recorded responses stand in for their launches.

    However the round ends, none of its responses runs on an engine afterwards, except carried ones
    that it may leave running. Raises TimeoutError when nothing happens for deadline_s, and
    EngineLost when the last engine is gone and no elastic worker may come. An engine that generates
    with weights that the round does not allow counts as gone.
    """
    return await _Round(inputs).play()


class _Round:
    def __init__(self, inputs: RoundInputs) -> None:
        self._inputs = inputs
        self._scheduler = inputs.scheduler
        self._pool = EnginePool(inputs.engines, inputs.max_running)
        self._sources = EventSources(self._pool, inputs, self._describe_stall)
        self._finished = FinishedResponses(inputs)
        self._events: deque[Event | Published] = deque()
        self._verdicts: list[Scored] = []  # that are not events yet
        self._tracker = ResponseTracker(inputs, self._pool, self._events.append)

    async def play(self) -> RoundResult:
        tracker = self._tracker
        try:
            await tracker.begin()
            await self._carry_out(self._scheduler.start())
            await self._handle_events()
            await tracker.abort_unclaimed()
            # an engine on which responses are left running has yet to hand over its finished ones
            while not (tracker.is_closed and self._pool.is_idle) or self._sources.are_polled(
                self._pool.left_on
            ):
                is_due = self._pool.is_idle or not self._inputs.plan.scores_last
                if is_due and self._finished.has_held and not tracker.is_closed:
                    await self._inputs.feed.publish(self._finished.hand_over())
                await self._listen()
                await self._handle_events()
            await tracker.freeing.finish()
        except BaseException:
            await self._stop()
            raise
        finally:
            self._sources.close()
            self._pool.close()
        return replace(
            self._finished.result(tracker.unfinished, tracker.moved),
            freed=tuple(tracker.freeing.learners),
            freed_s=tuple(tracker.freeing.freed_s),
            took_s=tracker.elapsed_s,
            in_flight=self._pool.in_flight,
            awaited_weights_s=self._sources.awaited_weights_s,
            num_interrupted=tracker.reported.num_interrupted,
            lost_tokens_bounds=tuple(tracker.reported.lost_tokens_bounds),
            interrupted=tuple(tracker.reported.interrupted),
            joined=tracker.joined,
        )

    async def _handle_events(self) -> None:
        """Have the scheduler handle event by event; events after the close are dropped."""
        while self._events and not self._tracker.is_closed:
            event = self._events.popleft()
            if isinstance(event, Published):
                assert isinstance(self._scheduler, OverlappedScheduler), "the round overlaps"
                await self._carry_out(self._scheduler.publish(event))
            else:
                await self._carry_out(self._scheduler.handle(event))
        self._events.clear()

    async def _stop(self) -> None:
        """Leave the engines idle after a failure: the next attempt requests the same responses."""
        self._tracker.close()
        await self._tracker.freeing.stop(STOP_S)
        self._sources.only_engines(STOP_S)
        self._pool.come_back()
        try:
            async with asyncio.timeout(STOP_S):
                await self._tracker.abort(self._pool.running)
                while not self._pool.is_idle:
                    await self._listen()
        except (EngineLost, TimeoutError) as error:  # the caller gets the first failure
            step, running = self._inputs.plan.step, ",".join(self._pool.running)
            logger.warning("step=%d not_idle=%s reason=%s", step, running, error)

    # --- answers of the sources become events --------------------------------------------------

    async def _listen(self) -> None:
        """Wait for the next answer of a source and append the answer's events."""
        tracker = self._tracker
        are_verdicts_due = self._finished.num_unscored > 0 and not tracker.is_closed
        incoming = await self._sources.next(verdicts=are_verdicts_due, max_s=tracker.due_in_s)
        tracker.freeing.check()
        await tracker.give_up(incoming.lost)
        await tracker.apply_news(incoming.elastic_workers)
        await tracker.balance(incoming.moves)
        for score in incoming.scores:
            self._score(score)
        self._events += [Published(version=version) for version in incoming.published]
        refused = self._keep(incoming.engine, incoming.new_tokens)
        refused += await self._admit(incoming.engine, incoming.responses)
        if refused:
            found, allowed = refused[0], self._inputs.versions
            error = f"{incoming.engine} samples with {found}, the round allows versions {allowed}"
            await tracker.give_up({incoming.engine: EngineLost(error)})
        await tracker.hand_out()
        await tracker.scale_down(self._finished.num_groups)

    def _keep(self, engine: str, new_tokens: Sequence[NewTokens]) -> list[tuple[VersionSpan, ...]]:
        """Keep the reported tokens of this attempt's responses; returns the refused versions."""
        kept: list[NewTokens] = []
        refused: list[tuple[VersionSpan, ...]] = []
        for new in new_tokens:
            self._pool.count_reported(engine, new)
            is_expected = self._pool.expected(engine, new) is not None
            if is_expected and self._inputs.allows_versions(new.versions):
                kept.append(new)
                continue
            refused += [new.versions] if is_expected else []
            self._finished.refuse(len(new.token_ids))
        self._tracker.keep(engine, kept)
        return refused

    async def _admit(
        self, engine: str, responses: Sequence[Generated]
    ) -> list[tuple[VersionSpan, ...]]:
        """Take the responses that this attempt requested from this engine; returns the versions of
        those with weights that the round does not allow, which count as not answered.

        A response that was not requested belongs to another attempt, or was launched again
        elsewhere when the engine was taken for lost.
        """
        allowed: list[Generated] = []
        refused: list[tuple[VersionSpan, ...]] = []
        for response in responses:
            is_expected = self._pool.expected(engine, response) is not None
            if is_expected and self._inputs.allows(response):
                allowed.append(response)
                continue
            refused += [response.versions] if is_expected else []
            self._finished.refuse(self._pool.num_new(engine, response))
        stopped: list[Generated] = []
        for response in allowed:
            if self._tracker.take(response):
                self._finished.finish(response)
            else:
                stopped.append(response)
        await self._tracker.resume(stopped)
        self._finish([response for response in allowed if response.finish_reason != "aborted"])
        return refused

    def _finish(self, whole: Sequence[Generated]) -> None:
        """Have complete responses wait for their verdicts."""
        self._inputs.on_finished(whole)
        self._finished.hold(whole)
        self._events += map(_finished, whole)

    def _score(self, score: Score) -> None:
        self._finished.score(score)
        prompt_id, index, outcome = score.prompt_id, score.index, score.outcome
        event = Scored(prompt_id=prompt_id, index=index, outcome=outcome, reward=score.reward)
        self._verdicts.append(event)
        # those of a round that scores last come together: what they lead to is the next wave, which
        # nothing is generated beside
        if not (self._inputs.plan.scores_last and self._finished.num_unscored):
            self._events += self._verdicts
            self._verdicts.clear()

    # --- decisions of the scheduler are carried out --------------------------------------------

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        """Carry out one answer: launches together, the rest in order, aborts together."""
        await self._launch([decision for decision in decisions if isinstance(decision, Launch)])
        aborts: list[str] = []
        carried: set[str] = set()
        for decision in decisions:
            match decision:
                case Abort(prompt_id=prompt_id, indices=indices):
                    aborts += [response_id(prompt_id, index) for index in indices]
                case AcceptGroup():
                    await self._inputs.on_accept(self._finished.accept(decision))
                case CloseRound():
                    self._tracker.close()
                case Carry(prompt_id=prompt_id):
                    self._finished.note(decision)
                    carried.add(prompt_id)
                case _:
                    self._finished.note(decision)
        await self._tracker.abort(aborts)
        if carried:
            await self._tracker.leave(carried)
        if any(isinstance(decision, AcceptGroup) for decision in decisions):
            await self._tracker.scale_down(self._finished.num_groups)

    async def _launch(self, launches: Sequence[Launch]) -> None:
        """Generate the responses that are neither recorded nor running; recorded ones take the
        place of their launches."""
        unknown: list[tuple[str, int]] = []
        known: list[Response] = []
        for launch in launches:
            name = response_id(launch.prompt_id, launch.index)
            recorded = self._finished.take_recorded(name)
            if recorded is not None:
                known.append(recorded)
            elif not self._tracker.claim(launch):
                unknown.append((launch.prompt_id, launch.index))
        await self._tracker.submit(unknown)
        for response in known:
            self._finished.finish(response.generated)
            if response.score is None:
                self._finish([response.generated])
            else:
                self._inputs.on_finished([response.generated])
                self._events.append(_finished(response.generated))
                self._score(response.score)

    def _describe_stall(self) -> str:
        """For the deadline's error message: the wait, its length, and the engines that live."""
        plan, deadline_s = self._inputs.plan, self._inputs.deadline_s
        return (
            f"the {plan.kind} round of step {plan.step} waited {deadline_s:.0f} s without a token, "
            f"a response or a verdict for {self._scheduler.waiting_for()}; "
            f"{self._sources.describe()}; {self._finished.describe()}"
        )


def _finished(response: Generated) -> Finished:
    num_tokens = response.num_sampled
    return Finished(prompt_id=response.prompt_id, index=response.index, num_tokens=num_tokens)
