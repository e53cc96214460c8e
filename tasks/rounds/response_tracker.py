"""What a round generates: sent to engines, moved between them, given up, lost.

    claim ─▶ submit ─▶ (an engine runs it) ─▶ take ─▶ home: whole, or nobody wants it any more
               ▲                  │             └───▶ stopped: resume ─▶ Lost, unless it moves on
               └── it moves on ◀──┴─ scale_down, balance, an elastic worker is leaving

Carries out what the driver was told, on the engines behind `dispatch`; of a response that must be
asked for again the driver hears by `tell`. A round that elastic workers may join waits for one when
it has no engine. Leaves out verdicts, groups and what to launch.
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
from tasks.rounds.freeing import Freeing
from tasks.rounds.migration import Migration
from tasks.rounds.readings import read_engines
from tasks.rounds.records import RoundInputs
from tasks.rounds.reports import Reports
from tasks.scheduling.balancing import Move
from tasks.scheduling.events import Launch, Lost
from tasks.scheduling.seeding import TIMER_S
from tasks.scheduling.stream_training import Moment, Reading

logger = logging.getLogger(__name__)

PARTING_S = 10.0  # how long a round that has all it wants waits for its elastic workers


class ResponseTracker:
    """The responses of one round that are still to be generated."""

    def __init__(
        self, inputs: RoundInputs, dispatch: EnginePool, tell: Callable[[Lost], None]
    ) -> None:
        self.freeing = Freeing(inputs.on_freed, lambda: self.elapsed_s)
        self.is_closed = False  # whether the round has all that it wants
        self.joined: dict[str, tuple[str, ...]] = {}  # devices of every elastic worker, by its name
        self._inputs = inputs
        self._dispatch = dispatch
        self._tell = tell
        self.reports = Reports(inputs.report_tokens)
        self._migration = Migration()
        self._unclaimed: set[str] = set()  # adopted, and not launched yet
        self._oldest: dict[str, int] = {}  # weights that may generate what was launched, by prompt
        self._aborted: set[str] = set()
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    async def begin(self) -> None:
        """Free the devices that the round never needs, welcome the elastic workers that are
        present, find the responses that an earlier attempt or round has begun, and adopt what the
        round before left on its engines."""
        for decision in self._inputs.stream_trainer.start():
            await self.freeing.free(decision)
        if self._inputs.elastic_workers is not None:
            await self.hear(await self._inputs.elastic_workers.news(0.0))
        recorded = {each.generated.response_id: each.generated for each in self._inputs.recorded}
        whole = {name for name, each in recorded.items() if each.finish_reason != "aborted"}
        self._find(recorded, recorded.keys() - whole)
        begun = await self._inputs.begun()
        self._find(begun, begun.keys() - whole)
        away: dict[str, EngineLost] = {}
        for left in self._inputs.adopted:
            request = self._migration.resume(self._inputs.request(left.prompt_id, left.index))
            asked = replace(request, attempt=left.attempt, oldest_version=left.oldest_version)
            if self._dispatch.adopt(left.engine, asked, left.num_kept):
                self._unclaimed.add(left.response_id)
            else:
                away[left.engine] = EngineLost("it was away when a round went on with what it runs")
        await self._tell_of(away)

    def close(self) -> None:
        """The round has all that it wants: what comes now is nobody's."""
        self.is_closed = True
        self._dispatch.hurry(PARTING_S)

    # --- to the engines ------------------------------------------------------------------------

    def claim(self, launch: Launch) -> bool:
        """Whether this launch is of an adopted response, which runs already."""
        self._oldest[launch.prompt_id] = launch.oldest_version
        name = response_id(launch.prompt_id, launch.index)
        is_adopted = name in self._unclaimed
        self._unclaimed.discard(name)
        return is_adopted

    async def submit(self, responses: Sequence[tuple[str, int]]) -> None:
        """Have these generated, as (prompt id, index), each from where it was left."""
        requests = [
            replace(self._inputs.request(*response), oldest_version=self._oldest[response[0]])
            for response in responses
        ]
        await self.lose(await self._dispatch.submit([*map(self._migration.resume, requests)]))

    async def hand_out(self) -> None:
        """Have generated what waits for an engine with room."""
        await self.lose(await self._dispatch.hand_out())

    async def abort(self, names: Sequence[str]) -> None:
        self._aborted |= set(names)
        await self.lose(await self._dispatch.abort(names))

    async def abort_unclaimed(self) -> None:
        """Give up what was adopted and is not wanted."""
        await self.abort(sorted(self._unclaimed))

    async def leave(self, prompt_ids: Collection[str]) -> None:
        """What runs of these prompts runs on, or is asked again by the next round."""
        running = [name for name in self._dispatch.running if prompt_of(name) in prompt_ids]
        if self._inputs.leaves_running and running:
            await self.lose(await self._dispatch.leave(running))
        else:
            await self.abort(running)

    async def scale_down(self, num_accepted: int) -> None:
        """Where that is due: free the devices that the round can do without, and move what runs on
        them."""
        trainer, moment = self._inputs.stream_trainer, self._moment(num_accepted)
        if self.is_closed or not trainer.is_due(moment):
            return
        capacity, running, lost = await read_engines(self._dispatch)
        await self.lose(lost)
        reading = Reading(**asdict(moment), capacity_tokens=capacity, running=running)
        for decision in [] if lost else trainer.handle(reading):
            moving = self._dispatch.retire(decision.engines)
            step, freed = self._inputs.plan.step, ",".join(decision.learners)
            logger.info("step=%d freed=%s migrated=%d", step, freed, len(moving))
            self._migration.leave(decision, moving)
            await self.lose(await self._dispatch.abort(moving))
        await self.resume([])

    def _moment(self, num_accepted: int) -> Moment:
        return Moment(
            num_accepted=num_accepted,
            elapsed_s=self.elapsed_s,
            num_running=self._dispatch.num_at_home,
            num_elastic_workers=self._dispatch.num_elastic_workers,
        )

    @property
    def elapsed_s(self) -> float:
        """Since the round began."""
        return self._clock() - self._began_s

    @property
    def look_in_s(self) -> float:
        """Seconds until freeing devices may be due though nothing happens."""
        look_s = self._inputs.stream_trainer.next_look_s
        left_s = look_s - self.elapsed_s if look_s is not None else 0.0
        return left_s if left_s > TIMER_S and not self.is_closed else math.inf

    async def balance(self, moves: Sequence[Move]) -> None:
        """Have these go on in other engines, one look's moves after the other's."""
        if self.is_closed or self._migration.is_moving:
            return
        moving = self._dispatch.aim(moves)
        if moving:
            logger.info("step=%d balanced=%d", self._inputs.plan.step, len(moving))
        self._migration.move(moving)
        await self.lose(await self._dispatch.abort(moving))

    # --- elastic workers
    # --------------------------------------------------------------------------------

    async def hear(self, news: Sequence[ElasticNews]) -> None:
        """Engines come and go; what the round knows already changes nothing."""
        for told in news:
            match told:
                case EngineJoined():
                    self._join(told)
                case EngineLeaving(name=name):
                    await self._see_off(name)
                case EngineGone(name=name, reason=reason):
                    await self.lose({name: EngineLost(reason)})

    def _join(self, joined: EngineJoined) -> None:
        """It takes requests of groups that were dispatched at its weights or at older ones."""
        if self.is_closed or not self._inputs.may_ask(joined.version):
            return
        name, step = joined.engine.name, self._inputs.plan.step
        if self._dispatch.add(joined):
            self.joined[name] = joined.devices
            logger.info("step=%d joined=%s waiting=%d", step, name, self._dispatch.num_waiting)
        else:
            self._dispatch.renew(name, joined.version)

    async def _see_off(self, name: str) -> None:
        """It takes no more requests, and what runs there moves on; a closed round stops all that
        runs anyway."""
        if self.is_closed:
            return
        moving = self._dispatch.retire_elastic_worker(name)
        if moving:
            logger.info("step=%d leaving=%s migrated=%d", self._inputs.plan.step, name, len(moving))
        self._migration.move(moving)
        await self.lose(await self._dispatch.abort(moving))
        await self.resume([])

    # --- back from the engines -----------------------------------------------------------------

    def keep(self, engine: str, told: Sequence[NewTokens]) -> None:
        """What this engine was asked for, and tells of while it goes on."""
        known: list[NewTokens] = []
        for new in told:
            request = self._dispatch.expected(engine, new)
            kept = self.reports.keep(request, new) if request is not None else None
            known += [kept] if kept is not None else []
        self._inputs.on_told(known)

    def take(self, response: Generated) -> bool:
        """Whether a response that an engine has handed back is home; one that was stopped, and that
        nobody has given up, may go on."""
        self._dispatch.finish(response.response_id)
        self.reports.forget(response.response_id)
        is_unwanted = self.is_closed or response.response_id in self._aborted
        if response.finish_reason == "aborted" and not is_unwanted:
            return False
        self._migration.finish(response.response_id)
        return True

    async def resume(self, stopped: Sequence[Generated]) -> None:
        """What an engine handed over goes on elsewhere; of what it gave up the driver hears."""
        moving = self._migration.part(stopped)
        await self.submit([(response.prompt_id, response.index) for response in moving])
        for response in stopped:
            if response not in moving:
                self._tell(Lost(prompt_id=response.prompt_id, index=response.index))
        for decision in self._migration.freed(lambda name: not self._dispatch.num_running(name)):
            self.freeing.begin(decision)
        self._dispatch.dismiss()

    async def give_up(self, engines: Mapping[str, EngineLost]) -> None:
        """The round has found these lost; elastic workers among them may live, with what they were
        asked."""
        found = {name: error for name, error in engines.items() if name in self._dispatch.alive}
        await self.lose(found)
        await self._tell_of(found)

    async def _tell_of(self, engines: Mapping[str, EngineLost]) -> None:
        """Have elastic workers among these begin anew, unless the next load drops what runs
        anyway."""
        is_dropped = self.is_closed and self._inputs.publications is None
        if self._inputs.elastic_workers is None or is_dropped:
            return
        own = {engine.name for engine in self._inputs.engines}
        for name in engines.keys() - own:
            await self._inputs.elastic_workers.give_up(name, str(engines[name]))

    async def lose(self, engines: Mapping[str, EngineLost]) -> None:
        """Engines are gone: the driver hears of every response that went with them."""
        for name, error in engines.items():
            if name not in self._dispatch.alive:
                continue
            lost = self._dispatch.remove(name)
            self._check_alive(name, error)
            names = [request.response_id for request in lost]
            self._migration.stay(names)
            for told in self.reports.lose(name, lost):
                self._migration.hand_over(told)
            played = [request.response_id for request in lost if request.environment]
            played = [] if self.is_closed else played  # nobody would go on with it
            self._find(await self._inputs.begun() if played else {}, played)
            self._unclaimed.difference_update(names)
            for request in lost:
                self._tell(Lost(prompt_id=request.prompt_id, index=request.index))

    def _check_alive(self, name: str, error: EngineLost) -> None:
        """Raises EngineLost when this was the last engine and none may come."""
        if self._dispatch.alive or self.is_closed:
            return
        if self._inputs.elastic_workers is None:
            raise EngineLost(f"no engine is left, {name} was the last: {error}") from error
        step = self._inputs.plan.step
        logger.warning(
            "step=%d last_engine=%s reason=%s waits_for=elastic workers", step, name, error
        )

    def _find(self, begun: Mapping[str, Generated], names: Collection[str]) -> None:
        """Of these, which no engine plays any more, what was written down (`begun`) is gone on
        with, where the round may train it."""
        for found in (begun[name] for name in sorted(names) if name in begun):
            if self._inputs.goes_on_with(found):
                self._migration.find(found)

    # --- at the end ----------------------------------------------------------------------------

    @property
    def unfinished(self) -> Iterator[Generated]:
        """Partial responses that nobody went on with."""
        left = {response.response_id for response in self._dispatch.in_flight}
        return (held for name, held in self._migration.kept.items() if name not in left)

    @property
    def moved(self) -> Sequence[Generated]:
        """Partial responses as engines handed them over to others."""
        return self._migration.moved
