"""Plays one round: carries out the scheduler's decisions on the engines, and tells it what
happened.

    engines ── finished, lost ─┐                       ┌─ launch ─▶ generation ─▶ engines
    feed ───── scored ─────────┼▶ events ─▶ scheduler ─┼─ abort ──▶ generation
    records ── replayed ───────┤                       └─ accept ─▶ on_accept, stream trainer
    training ─ published ──────┘       elastic workers come and go: ────▶ generation

One queue of events and one loop: an event is taken, the scheduler asked, its answer carried out to
the end, and only then is the next event looked at. Carrying out may append events, as of an engine
that is found lost; it never handles them. All launches and all aborts of one answer go to an engine
in one call, so that a round's opening is one batch per engine and always samples the same tokens.

A response counts if this attempt at the round asked this engine for it, or adopted what an earlier
round had asked, and if its weights are allowed (`RoundInputs.allows`). The same code drives real
engines and simulated ones on a virtual clock. Leaves out how the driver waits (`sources`) and what
becomes of a response between its launch and its end (`generation`).
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

    However it ends, nothing of it runs on an engine afterwards, but what it carries into the next
    round and may leave there. Raises TimeoutError when nothing happens for deadline_s, and
    EngineLost when the last engine is gone and no elastic worker may come; one that generates with
    weights that the round does not allow counts as gone.
    """
    return await _Round(inputs).play()


class _Round:
    def __init__(self, inputs: RoundInputs) -> None:
        self._inputs = inputs
        self._scheduler = inputs.scheduler
        self._dispatch = EnginePool(inputs.engines, inputs.most_running)
        self._sources = EventSources(self._dispatch, inputs, self._stuck)
        self._arrivals = FinishedResponses(inputs)
        self._events: deque[Event | Published] = deque()
        self._generation = ResponseTracker(inputs, self._dispatch, self._events.append)

    async def play(self) -> RoundResult:
        try:
            await self._generation.begin()
            await self._carry_out(self._scheduler.start())
            await self._answer_events()
            await self._generation.abort_unclaimed()
            while not (self._is_closed and self._dispatch.is_idle) or self._is_leaving():
                await self._publish()
                await self._listen()
                await self._answer_events()
            await self._generation.freeing.finish()
        except BaseException:
            await self._stop()
            raise
        finally:
            self._sources.close()
            self._dispatch.close()
        generation = self._generation
        return replace(
            self._arrivals.result(generation.unfinished, generation.moved),
            freed=tuple(generation.freeing.learners),
            freed_s=tuple(generation.freeing.freed_s),
            took_s=generation.elapsed_s,
            in_flight=self._dispatch.in_flight,
            awaited_weights_s=self._sources.awaited_weights_s,
            num_interrupted=generation.reports.num_interrupted,
            lost_tokens_bounds=tuple(generation.reports.lost_tokens_bounds),
            interrupted=tuple(generation.reports.interrupted),
            joined=generation.joined,
        )

    @property
    def _is_closed(self) -> bool:
        return self._generation.is_closed

    def _is_leaving(self) -> bool:
        """Whether an engine that keeps something running has yet to say what it has finished."""
        return self._sources.are_asked(self._dispatch.left_on)

    async def _answer_events(self) -> None:
        """Have the scheduler answer event by event; what comes after the close is nobody's."""
        while self._events and not self._is_closed:
            event = self._events.popleft()
            if isinstance(event, Published):
                assert isinstance(self._scheduler, OverlappedScheduler), "the round overlaps"
                await self._carry_out(self._scheduler.publish(event))
            else:
                await self._carry_out(self._scheduler.handle(event))
        self._events.clear()

    async def _stop(self) -> None:
        """After a failure: leave the engines idle, for the next attempt asks them for the same
        responses."""
        self._generation.close()
        await self._generation.freeing.stop(STOP_S)
        self._sources.only_engines(STOP_S)
        self._dispatch.come_back()
        try:
            async with asyncio.timeout(STOP_S):
                await self._generation.abort(self._dispatch.running)
                while not self._dispatch.is_idle:
                    await self._listen()
        except (EngineLost, TimeoutError) as error:  # the caller is to hear of the first failure
            step, running = self._inputs.plan.step, ",".join(self._dispatch.running)
            logger.warning("step=%d not_idle=%s reason=%s", step, running, error)

    # --- what happens: it becomes events -------------------------------------------------------

    async def _listen(self) -> None:
        """Wait until somebody has something to say, and note it."""
        are_verdicts_due = self._arrivals.num_unscored > 0 and not self._is_closed
        look_in_s = self._generation.look_in_s
        heard = await self._sources.hear(verdicts=are_verdicts_due, most_s=look_in_s)
        self._generation.freeing.check()
        await self._generation.give_up(heard.lost)
        await self._generation.hear(heard.elastic_workers)
        await self._generation.balance(heard.moves)
        for score in heard.scores:
            self._score(score)
        self._events += [Published(version=version) for version in heard.published]
        refused = self._keep(heard.engine, heard.told)
        refused += [each.versions for each in await self._admit(heard.engine, heard.arrived)]
        if refused:
            found, allowed = refused[0], self._inputs.versions
            error = f"{heard.engine} samples with {found}, the round allows versions {allowed}"
            await self._generation.give_up({heard.engine: EngineLost(error)})
        await self._generation.hand_out()
        await self._generation.scale_down(self._arrivals.num_groups)

    def _keep(self, engine: str, told: Sequence[NewTokens]) -> list[tuple[VersionSpan, ...]]:
        """Keep what an engine tells of what it runs for this attempt; the versions of what is
        refused, as `_admit` does."""
        kept: list[NewTokens] = []
        refused: list[tuple[VersionSpan, ...]] = []
        for new in told:
            self._dispatch.note_told(engine, new)
            is_expected = self._dispatch.is_expected(engine, new)
            if is_expected and self._inputs.allows_versions(new.versions):
                kept.append(new)
                continue
            refused += [new.versions] if is_expected else []
            self._arrivals.refuse(len(new.token_ids))
        self._generation.keep(engine, kept)
        return refused

    async def _admit(self, engine: str, arrived: Sequence[Generated]) -> list[Generated]:
        """Take what this attempt asked this engine for; returns what of it has other weights.

        That counts as not answered. What nobody asked for belongs to another attempt, or was
        launched again elsewhere when the engine was taken for lost.
        """
        welcome: list[Generated] = []
        refused: list[Generated] = []
        for response in arrived:
            is_expected = self._dispatch.is_expected(engine, response)
            if is_expected and self._inputs.allows(response):
                welcome.append(response)
                continue
            refused += [response] if is_expected else []
            self._arrivals.refuse(self._dispatch.num_new(engine, response))
        await self._arrive(welcome)
        return refused

    async def _arrive(self, arrived: Sequence[Generated]) -> None:
        """These are over on their engine: whole ones are to be scored, stopped ones may go on."""
        stopped: list[Generated] = []
        for response in arrived:
            if self._generation.take(response):
                self._arrivals.finish(response)
            else:
                stopped.append(response)
        await self._generation.resume(stopped)
        self._finish([response for response in arrived if response.finish_reason != "aborted"])

    def _finish(self, whole: Sequence[Generated]) -> None:
        """These are complete, and wait for their verdicts."""
        self._inputs.on_finished(whole)
        self._arrivals.hold(whole)
        self._events += map(_finished, whole)

    def _score(self, score: Score) -> None:
        self._arrivals.score(score)
        prompt_id, index, outcome = score.prompt_id, score.index, score.outcome
        event = Scored(prompt_id=prompt_id, index=index, outcome=outcome, reward=score.reward)
        self._events.append(event)

    def _replay(self, response: Response) -> None:
        """A recorded response takes the place of its launch."""
        self._arrivals.finish(response.generated)
        if response.score is None:
            self._finish([response.generated])
            return
        self._inputs.on_finished([response.generated])
        self._events.append(_finished(response.generated))
        self._score(response.score)

    # --- what is done about it -----------------------------------------------------------------

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        """One answer of the scheduler: launches together, the rest in order, aborts together."""
        await self._launch([decision for decision in decisions if isinstance(decision, Launch)])
        aborts: list[str] = []
        carried: set[str] = set()
        for decision in decisions:
            match decision:
                case Abort(prompt_id=prompt_id, indices=indices):
                    aborts += [response_id(prompt_id, index) for index in indices]
                case AcceptGroup():
                    await self._inputs.on_accept(self._arrivals.accept(decision))
                case CloseRound():
                    self._generation.close()
                case Carry(prompt_id=prompt_id):
                    self._arrivals.note(decision)
                    carried.add(prompt_id)
                case _:
                    self._arrivals.note(decision)
        await self._generation.abort(aborts)
        if carried:
            await self._generation.leave(carried)
        if any(isinstance(decision, AcceptGroup) for decision in decisions):
            await self._generation.scale_down(self._arrivals.num_groups)

    async def _launch(self, launches: Sequence[Launch]) -> None:
        """Generate what is neither recorded nor running, and replay what is recorded."""
        unknown: list[tuple[str, int]] = []
        known: list[Response] = []
        for launch in launches:
            name = response_id(launch.prompt_id, launch.index)
            recorded = self._arrivals.take_recorded(name)
            if recorded is not None:
                known.append(recorded)
            elif not self._generation.claim(launch):
                unknown.append((launch.prompt_id, launch.index))
        await self._generation.submit(unknown)
        for response in known:
            self._replay(response)

    async def _publish(self) -> None:
        """Have what has finished scored: at once, or, if so planned, when nothing generates."""
        is_due = self._dispatch.is_idle or not self._inputs.plan.scores_last
        if is_due and self._arrivals.has_held and not self._is_closed:
            await self._inputs.feed.publish(self._arrivals.hand_over())

    def _stuck(self) -> str:
        """What the round waited for, for how long, and what was alive."""
        plan, deadline_s = self._inputs.plan, self._inputs.deadline_s
        return (
            f"the {plan.kind} round of step {plan.step} waited {deadline_s:.0f} s without a token, "
            f"a response or a verdict for {self._scheduler.waiting_for()}; "
            f"{self._sources.describe()}; {self._arrivals.describe()}"
        )


def _finished(response: Generated) -> Finished:
    num_tokens = response.num_sampled
    return Finished(prompt_id=response.prompt_id, index=response.index, num_tokens=num_tokens)
