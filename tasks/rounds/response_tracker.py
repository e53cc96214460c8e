"""The responses of a round that are still to be generated: sent to engines, moved between them,
given up, lost.

    claim ─▶ submit ─▶ (an engine runs it) ─▶ take ─▶ home: whole, or not wanted any more
               ▲                  │             └───▶ stopped: resume ─▶ Lost, unless it moves on
               └── it moves on ◀──┴─ scale_down, balance, an elastic worker is leaving

Carries out the driver's orders on the `EnginePool`; reports a response that must be generated again
by a `Lost` event. A round that elastic workers may join waits for one when it has no engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from artifacts.new_tokens import NewTokens
from artifacts.records import Generated, prompt_of, response_id
from tasks.engines.base import EngineLost
from tasks.rounds.elastic_engines import ElasticNews, EngineGone, EngineJoined, EngineLeaving
from tasks.rounds.engine_pool import EnginePool
from tasks.rounds.migration import Freeing, Migration, ReportedTokens
from tasks.rounds.rebalancing import read_engines
from tasks.rounds.records import RoundInputs
from tasks.scheduling.balancing import Move
from tasks.scheduling.events import Launch, Lost
from tasks.scheduling.seeding import TIMER_S
from tasks.scheduling.stream_training import Moment, Reading

logger = logging.getLogger(__name__)

PARTING_S = 10.0  # how long a round that has all it wants waits for its elastic workers


class ResponseTracker:
    """Tracks the unfinished responses of one round, and sends them to engines."""

    def __init__(
        self, inputs: RoundInputs, pool: EnginePool, on_lost: Callable[[Lost], None]
    ) -> None:
        self.freeing = Freeing(inputs.on_freed, lambda: self.elapsed_s)
        self.is_closed = False  # whether the round has accepted all its groups
        self.joined: dict[str, tuple[str, ...]] = {}  # devices of every elastic worker, by its name
        self.reported = ReportedTokens(inputs.report_tokens)
        self._inputs = inputs
        self._pool = pool
        self._on_lost = on_lost
        self._migration = Migration()
        self._unclaimed: set[str] = set()  # adopted, and not launched yet
        self._oldest: dict[str, int] = {}  # oldest weights that may generate a prompt's responses
        self._aborted: set[str] = set()
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    async def begin(self) -> None:
        """Prepare the round: free the devices that it never needs, admit the elastic workers that
        are present, find the responses that an earlier attempt or round has begun, and adopt those
        that the round before left running."""
        inputs = self._inputs
        for decision in inputs.stream_trainer.start():
            await self.freeing.free(decision)
        if inputs.elastic_workers is not None:
            await self.apply_news(await inputs.elastic_workers.news(0.0))
        recorded = {each.generated.response_id: each.generated for each in inputs.recorded}
        whole = {name for name, each in recorded.items() if each.finish_reason != "aborted"}
        self._find(recorded, recorded.keys() - whole)
        begun = await inputs.begun()
        self._find(begun, begun.keys() - whole)
        away: dict[str, EngineLost] = {}
        for left in inputs.adopted:
            request = self._migration.resume(inputs.request(left.prompt_id, left.index))
            request = replace(request, attempt=left.attempt, oldest_version=left.oldest_version)
            if self._pool.adopt(left.engine, request, left.num_kept):
                self._unclaimed.add(left.response_id)
            else:
                away[left.engine] = EngineLost("it was away when a round went on with what it runs")
        await self._reset_elastic(away)

    def close(self) -> None:
        """Discard every response that comes back from now on, and wait for elastic workers only a
        little longer (`PARTING_S`)."""
        self.is_closed = True
        self._pool.hurry(PARTING_S)

    # --- to the engines ------------------------------------------------------------------------

    def claim(self, launch: Launch) -> bool:
        """Return True if this launch is of an adopted response, which runs already."""
        self._oldest[launch.prompt_id] = launch.oldest_version
        name = response_id(launch.prompt_id, launch.index)
        is_adopted = name in self._unclaimed
        self._unclaimed.discard(name)
        return is_adopted

    async def submit(self, responses: Sequence[tuple[str, int]]) -> None:
        """Have responses, by (prompt id, index), generated; each continues from its kept tokens."""
        requests = [
            replace(self._inputs.request(*response), oldest_version=self._oldest[response[0]])
            for response in responses
        ]
        await self.lose(await self._pool.submit([*map(self._migration.resume, requests)]))

    async def hand_out(self) -> None:
        """Send pending requests to engines with room."""
        await self.lose(await self._pool.hand_out())

    async def abort(self, names: Sequence[str]) -> None:
        """Give up the responses with these ids, and stop them where they run."""
        self._aborted |= set(names)
        await self.lose(await self._pool.abort(names))

    async def abort_unclaimed(self) -> None:
        """Give up the adopted responses that no launch has claimed."""
        await self.abort(sorted(self._unclaimed))

    async def leave(self, prompt_ids: Collection[str]) -> None:
        """Let the responses of these prompts run on into the next round if that may adopt them,
        else abort them."""
        running = [name for name in self._pool.running if prompt_of(name) in prompt_ids]
        if self._inputs.leaves_running and running:
            await self.lose(await self._pool.leave(running))
        else:
            await self.abort(running)

    async def scale_down(self, num_accepted: int) -> None:
        """If the stream trainer is due: read the engines, free the devices that the round can do
        without, and move their responses."""
        trainer = self._inputs.stream_trainer
        moment = Moment(
            num_accepted=num_accepted,
            elapsed_s=self.elapsed_s,
            num_running=self._pool.num_on_own,
            num_elastic_workers=self._pool.num_elastic_workers,
        )
        if self.is_closed or not trainer.is_due(moment):
            return
        capacity, running, lost = await read_engines(self._pool)
        await self.lose(lost)
        reading = Reading(**asdict(moment), capacity_tokens=capacity, running=running)
        for decision in [] if lost else trainer.handle(reading):
            moving = self._pool.retire(decision.engines)
            step, freed = self._inputs.plan.step, ",".join(decision.learners)
            logger.info("step=%d freed=%s migrated=%d", step, freed, len(moving))
            self._migration.leave(decision, moving)
            await self.lose(await self._pool.abort(moving))
        await self.resume([])

    @property
    def elapsed_s(self) -> float:
        """Seconds since the round began."""
        return self._clock() - self._began_s

    @property
    def due_in_s(self) -> float:
        """Seconds until the stream trainer may be due even if nothing happens, or infinity."""
        due_s = self._inputs.stream_trainer.next_due_s
        left_s = due_s - self.elapsed_s if due_s is not None else 0.0
        return left_s if left_s > TIMER_S and not self.is_closed else math.inf

    async def balance(self, moves: Sequence[Move]) -> None:
        """Have these responses go on in other engines, unless earlier moves are under way."""
        if self.is_closed or self._migration.is_moving:
            return
        moving = self._pool.aim(moves)
        if moving:
            logger.info("step=%d balanced=%d", self._inputs.plan.step, len(moving))
        self._migration.move(moving)
        await self.lose(await self._pool.abort(moving))

    # --- elastic workers -----------------------------------------------------------------------

    async def apply_news(self, news: Sequence[ElasticNews]) -> None:
        """Let engines join and leave; news that the round knows already changes nothing."""
        for each in news:
            match each:
                case EngineJoined():
                    self._join(each)
                case EngineLeaving(name=name):
                    await self._evacuate(name)
                case EngineGone(name=name, reason=reason):
                    await self.lose({name: EngineLost(reason)})

    def _join(self, joined: EngineJoined) -> None:
        """Add an elastic worker, for groups that were dispatched at its weights or at older
        ones."""
        if self.is_closed or not self._inputs.may_use(joined.version):
            return
        name, step = joined.engine.name, self._inputs.plan.step
        if self._pool.join(joined):
            self.joined[name] = joined.devices
            logger.info("step=%d joined=%s waiting=%d", step, name, self._pool.num_pending)

    async def _evacuate(self, name: str) -> None:
        """Move the responses of an elastic worker that is leaving, unless the round is closed."""
        if self.is_closed:
            return
        moving = self._pool.retire_leaving(name)
        if moving:
            logger.info("step=%d leaving=%s migrated=%d", self._inputs.plan.step, name, len(moving))
        self._migration.move(moving)
        await self.lose(await self._pool.abort(moving))
        await self.resume([])

    # --- back from the engines -----------------------------------------------------------------

    def keep(self, engine: str, new_tokens: Sequence[NewTokens]) -> None:
        """Keep and record tokens of running responses that this engine reports."""
        kept: list[NewTokens] = []
        for new in new_tokens:
            request = self._pool.expected(engine, new)
            known = self.reported.keep(request, new) if request is not None else None
            kept += [known] if known is not None else []
        self._inputs.on_new_tokens(kept)

    def take(self, response: Generated) -> bool:
        """Take a response that an engine has handed back. Returns False for one that was stopped
        without being given up, which may go on."""
        self._pool.finish(response.response_id)
        self.reported.forget(response.response_id)
        is_unwanted = self.is_closed or response.response_id in self._aborted
        if response.finish_reason == "aborted" and not is_unwanted:
            return False
        self._migration.finish(response.response_id)
        return True

    async def resume(self, stopped: Sequence[Generated]) -> None:
        """Resubmit the stopped responses that were to move, and report the others as lost, because
        their engine gave them up. Then free the devices of engines that are empty now."""
        moving = self._migration.part(stopped)
        await self.submit([(response.prompt_id, response.index) for response in moving])
        for response in stopped:
            if response not in moving:
                self._on_lost(Lost(prompt_id=response.prompt_id, index=response.index))
        for decision in self._migration.emptied(
            lambda name: not self._pool.router.num_running(name)
        ):
            self.freeing.begin(decision)
        self._pool.remove_emptied()

    async def give_up(self, engines: Mapping[str, EngineLost]) -> None:
        """Go on without engines that the round has found lost. Elastic workers among them may live
        and still run requests, so they must begin anew."""
        alive = self._pool.router.alive
        found = {name: error for name, error in engines.items() if name in alive}
        await self.lose(found)
        await self._reset_elastic(found)

    async def _reset_elastic(self, engines: Mapping[str, EngineLost]) -> None:
        """Have elastic workers among these begin anew, unless the next load drops their requests
        anyway."""
        is_dropped = self.is_closed and self._inputs.publications is None
        if self._inputs.elastic_workers is None or is_dropped:
            return
        own = {engine.name for engine in self._inputs.engines}
        for name in engines.keys() - own:
            await self._inputs.elastic_workers.give_up(name, str(engines[name]))

    async def lose(self, engines: Mapping[str, EngineLost]) -> None:
        """Remove engines that are gone, and report each response that they ran as lost. Raises
        EngineLost when the last engine is gone and no elastic worker may come."""
        for name, error in engines.items():
            if not self._pool.router.is_alive(name):
                continue
            lost = self._pool.remove(name)
            if not (self._pool.router.alive or self.is_closed):
                if self._inputs.elastic_workers is None:
                    raise EngineLost(f"no engine is left, {name} was the last: {error}") from error
                step = self._inputs.plan.step
                logger.warning(
                    "step=%d last_engine=%s reason=%s waits_for=elastic workers", step, name, error
                )
            names = [request.response_id for request in lost]
            self._migration.stay(names)
            for partial in self.reported.lose(name, lost):
                self._migration.hand_over(partial)
            episodes = [request.response_id for request in lost if request.environment]
            if episodes and not self.is_closed:
                self._find(await self._inputs.begun(), episodes)
            self._unclaimed.difference_update(names)
            for request in lost:
                self._on_lost(Lost(prompt_id=request.prompt_id, index=request.index))

    def _find(self, begun: Mapping[str, Generated], names: Collection[str]) -> None:
        """Go on with the recorded part (`begun`) of these responses, which no engine runs any more,
        where the round may train it."""
        for found in (begun[name] for name in sorted(names) if name in begun):
            if self._inputs.goes_on_with(found):
                self._migration.find(found)

    # --- at the end ----------------------------------------------------------------------------

    @property
    def unfinished(self) -> Iterator[Generated]:
        """Partial responses that no engine went on with."""
        left = {response.response_id for response in self._pool.in_flight}
        return (held for name, held in self._migration.kept.items() if name not in left)

    @property
    def moved(self) -> Sequence[Generated]:
        """Partial responses that moved to another engine, as their engines handed them over."""
        return self._migration.moved
