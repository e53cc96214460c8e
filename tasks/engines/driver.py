"""Plays one round: carries out the scheduler's decisions on the engines, and tells it what happened.

    scheduler ──launch──▶ dispatch ──▶ engines ──finished──▶ ScoreFeed.publish
        ▲  └───abort──────────────────▶│                          │
        └────────── events ◀───────────┴── ScoreFeed.scored ◀─────┘        accepted groups ──▶ on_accept
    stream trainer ◀─milestones, readings─┤   ──ScaleDown──▶ abort, resubmit elsewhere ──▶ on_freed

One loop over long polls: an engine is asked only while it runs something, the feed only while a verdict is due, so the round ends the
moment its last response does. All decisions of one answer go to an engine in one call, so that a round's opening is one batch per
engine and samples the same tokens every time. The same code drives real engines and simulated ones on a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from artifacts.records import Generated, Group, Response, Score, response_id
from tasks.engines.base import EngineLost
from tasks.engines.dispatch import Dispatch
from tasks.engines.migration import Migration
from tasks.engines.polls import Answer, Polls
from tasks.engines.round_records import RoundInputs, RoundResult
from tasks.scheduling.events import Abort, AcceptGroup, CloseRound, Decision, Defer, Drop, Event, Filter, Finished, Launch, Lost, Scored
from tasks.scheduling.stream_training import Reading

logger = logging.getLogger(__name__)

POLL_S = 5.0  # longest single wait; every wait ends earlier when something happens
FEED = ""  # the feed's name among the engines' names
STOP_S = 30.0  # how long engines may take to fall idle after a failure


async def drive_round(inputs: RoundInputs) -> RoundResult:
    """Play the round to its end. Recorded responses stand in for their launches: they are not generated again.

    However it ends, nothing of it runs on an engine afterwards. Raises TimeoutError when nothing happens for deadline_s, and
    EngineLost when the last engine is gone.
    """
    return await _Round(inputs).play()


class _Round:
    def __init__(self, inputs: RoundInputs) -> None:
        self._inputs = inputs
        self._scheduler = inputs.scheduler
        self._dispatch = Dispatch(inputs.engines)
        self._migration = Migration()
        self._polls = Polls()
        self._recorded = {one.generated.response_id: one for one in inputs.recorded if one.generated.finish_reason != "aborted"}
        self._generated: dict[str, Generated] = {}
        self._scores: dict[str, Score] = {}
        self._unscored: set[str] = set()
        self._held: list[Generated] = []  # finished, and not yet handed to the feed
        self._aborted: set[str] = set()
        self._groups: list[Group] = []
        self._deferred: list[str] = []
        self._dropped: list[str] = []
        self._filtered: list[str] = []
        self._closed = False

    async def play(self) -> RoundResult:
        try:
            for decision in self._inputs.stream_trainer.start():
                await self._inputs.on_freed(decision)
            await self._decide(self._scheduler.start())
            while not self._closed or self._dispatch.running:
                await self._publish()
                await self._listen(self._inputs.deadline_s)
        except BaseException:
            await self._stop()
            raise
        finally:
            self._polls.close()
        return RoundResult(
            groups=tuple(self._groups),
            deferred=tuple(self._deferred),
            dropped=tuple(self._dropped),
            filtered=tuple(self._filtered),
            generated=(*self._generated.values(), *self._migration.kept.values(), *(one.generated for one in self._recorded.values())),
            migrated=tuple(self._migration.moved),
            scores=tuple(self._scores.values()),
        )

    async def _stop(self) -> None:
        """After a failure: leave the engines idle, for the next attempt asks them for the same responses."""
        self._closed = True
        self._polls.drop(FEED)
        try:
            async with asyncio.timeout(STOP_S):
                await self._abort(self._dispatch.running)
                while self._dispatch.running:
                    await self._listen(STOP_S)
        except (EngineLost, TimeoutError) as error:  # the caller must hear of the failure that led here, not of this one
            logger.warning("step=%d not_idle=%s reason=%s", self._inputs.plan.step, ",".join(self._dispatch.running), error)

    # --- what happens -----------------------------------------------------------------------------------------------------

    async def _listen(self, deadline_s: float) -> None:
        """Wait until somebody has something to say, and act on it."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        heard = False
        while not heard:
            self._poll()
            try:
                source, answer = await self._polls.next(ends - loop.time())
            except TimeoutError:
                raise TimeoutError(self._stuck(deadline_s)) from None
            heard = await (self._hear_feed(answer) if source == FEED else self._hear_engine(source, answer))

    def _poll(self) -> None:
        """Ask whoever may have something to say and is not being asked."""
        for name in self._dispatch.alive:
            if self._dispatch.num_running(name) and not self._polls.is_asked(name):
                self._polls.ask(name, self._dispatch.collect(name, POLL_S))
        if self._unscored and not self._closed and not self._polls.is_asked(FEED):
            self._polls.ask(FEED, self._inputs.feed.scored(POLL_S))

    async def _hear_feed(self, answer: Answer) -> bool:
        scores: list[Score] = answer.result()
        for score in scores:
            await self._score(score)
        return bool(scores)

    async def _hear_engine(self, name: str, answer: Answer) -> bool:
        try:
            arrived: list[Generated] = answer.result()
        except EngineLost as error:
            await self._lose({name: error})
            return True
        if name in self._dispatch.alive:  # what a lost engine still says was launched again elsewhere
            await self._finish(arrived)
        return bool(arrived)

    async def _finish(self, arrived: Sequence[Generated]) -> None:
        whole = [one for one in arrived if one.finish_reason != "aborted"]
        partial = [one for one in arrived if one.finish_reason == "aborted" and not self._is_unwanted(one)]
        for one in arrived:
            self._dispatch.finish(one.response_id)
            if one not in partial:
                self._generated[one.response_id] = one
                self._migration.finish(one.response_id)
        self._inputs.on_finished(whole)
        await self._resume(partial)
        if self._closed or not whole:
            return
        self._held += whole
        await self._publish()
        for one in whole:
            await self._tell(Finished(prompt_id=one.prompt_id, index=one.index, num_tokens=len(one.token_ids)))

    async def _publish(self) -> None:
        """Have what has finished scored: at once, or in a round that scores last when nothing generates any more."""
        if self._closed or not self._held or (self._inputs.plan.scores_last and self._dispatch.running):
            return
        held, self._held = self._held, []
        self._unscored |= {one.response_id for one in held}
        await self._inputs.feed.publish(held)

    def _is_unwanted(self, generated: Generated) -> bool:
        return self._closed or generated.response_id in self._aborted

    async def _resume(self, partial: Sequence[Generated]) -> None:
        """What an engine handed over goes on elsewhere; what it gave up of its own accord is for the scheduler to launch again."""
        moving = self._migration.part(partial)
        await self._submit([(one.prompt_id, one.index) for one in moving])
        for one in partial:
            if one not in moving:
                await self._tell(Lost(prompt_id=one.prompt_id, index=one.index))
        for decision in self._migration.freed(lambda name: not self._dispatch.num_running(name)):
            await self._inputs.on_freed(decision)

    async def _score(self, score: Score) -> None:
        name = response_id(score.prompt_id, score.index)
        self._unscored.discard(name)
        self._scores[name] = score
        await self._tell(Scored(prompt_id=score.prompt_id, index=score.index, outcome=score.outcome, reward=score.reward))

    async def _lose(self, engines: Mapping[str, EngineLost]) -> None:
        """Engines are gone: the scheduler hears of every response that went with them, and launches what it still wants."""
        for name, error in engines.items():
            lost = self._dispatch.remove(name)
            if not self._dispatch.alive and not self._closed:
                raise EngineLost(f"no engine is left, {name} was the last: {error}") from error
            self._migration.stay(request.response_id for request in lost)
            for request in lost:
                await self._tell(Lost(prompt_id=request.prompt_id, index=request.index))

    async def _tell(self, event: Event) -> None:
        if not self._closed:
            await self._decide(self._scheduler.handle(event))

    # --- what is done about it --------------------------------------------------------------------------------------------

    async def _decide(self, decisions: Sequence[Decision]) -> None:
        """Carry out one answer of the scheduler: its launches together, the rest in order."""
        await self._launch([one for one in decisions if isinstance(one, Launch)])
        aborts: list[str] = []
        for decision in decisions:
            match decision:
                case Abort(prompt_id=prompt_id, indices=indices):
                    aborts += [response_id(prompt_id, index) for index in indices]
                case AcceptGroup():
                    await self._accept(decision)
                case Defer(prompt_id=prompt_id):
                    self._deferred.append(prompt_id)
                case Drop(prompt_id=prompt_id):
                    self._dropped.append(prompt_id)
                case Filter(prompt_id=prompt_id):
                    self._filtered.append(prompt_id)
                case CloseRound():
                    self._closed = True
        await self._abort(aborts)
        if any(isinstance(one, AcceptGroup) for one in decisions):
            await self._scale_down()

    async def _launch(self, launches: Sequence[Launch]) -> None:
        unknown: list[tuple[str, int]] = []
        known: list[Response] = []
        for launch in launches:
            name = response_id(launch.prompt_id, launch.index)
            if name in self._recorded:
                known.append(self._recorded.pop(name))
            else:
                unknown.append((launch.prompt_id, launch.index))
        await self._submit(unknown)
        for response in known:
            await self._replay(response)

    async def _replay(self, response: Response) -> None:
        """A recorded response takes the place of its launch."""
        one = response.generated
        if response.score is None:
            await self._finish([one])
            return
        self._generated[one.response_id] = one
        self._inputs.on_finished([one])
        await self._tell(Finished(prompt_id=one.prompt_id, index=one.index, num_tokens=len(one.token_ids)))
        await self._score(response.score)

    async def _submit(self, responses: Sequence[tuple[str, int]]) -> None:
        """Have these generated, as (prompt id, index), each from where it was left."""
        requests = [self._migration.resume(self._inputs.request(prompt_id, index)) for prompt_id, index in responses]
        await self._lose(await self._dispatch.submit(requests))

    async def _abort(self, names: Sequence[str]) -> None:
        self._aborted |= set(names)
        await self._lose(await self._dispatch.abort(names))

    async def _scale_down(self) -> None:
        """At a milestone: free the devices that the round can do without, and move what runs on them."""
        trainer = self._inputs.stream_trainer
        if self._closed or not trainer.is_due(len(self._groups)):
            return
        capacity, running, lost = await self._dispatch.read()
        await self._lose(lost)
        reading = Reading(num_accepted=len(self._groups), capacity_tokens=capacity, running=running)
        for decision in [] if self._closed or lost else trainer.handle(reading):
            moving = self._dispatch.retire(decision.engines)
            logger.info("step=%d freed=%s migrated=%d", self._inputs.plan.step, ",".join(decision.learners), len(moving))
            self._migration.leave(decision, moving)
            await self._lose(await self._dispatch.abort(moving))
        await self._resume([])

    async def _accept(self, decision: AcceptGroup) -> None:
        names = [response_id(decision.prompt_id, index) for index in decision.indices]
        responses = tuple(Response(generated=self._generated[name], score=self._scores[name]) for name in names)
        group = Group(prompt=self._inputs.prompts[decision.prompt_id], responses=responses)
        self._groups.append(group)
        await self._inputs.on_accept(group)

    def _stuck(self, deadline_s: float) -> str:
        plan = self._inputs.plan
        alive = ", ".join(f"{name} ({self._dispatch.num_running(name)} running)" for name in self._dispatch.alive)
        return (
            f"the {plan.kind} round of step {plan.step} waited {deadline_s:.0f} s for {self._scheduler.waiting_for()}; "
            f"alive: {alive}; {len(self._unscored)} responses wait for a verdict"
        )
