"""What a round generates: sent to engines, moved between them, given up, lost.

    claim ─▶ submit ─▶ (an engine runs it) ─▶ take ─▶ home: whole, or nobody wants it any more
               ▲                  │             └───▶ stopped: resume ─▶ Lost, unless it moves on
               └── it moves on ◀──┴─ scale_down

Carries out what the driver was told, on the engines behind `dispatch`; of a response that must be
asked for again the driver hears by `tell`. Leaves out verdicts, groups and what to launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from artifacts.records import Generated, prompt_of
from tasks.engines.base import EngineLost
from tasks.rounds.dispatch import Dispatch
from tasks.rounds.migration import Migration
from tasks.rounds.records import RoundInputs
from tasks.scheduling.events import Lost
from tasks.scheduling.stream_training import Reading, ScaleDown

logger = logging.getLogger(__name__)


class Generation:
    """The responses of one round that are still to be generated."""

    def __init__(
        self, inputs: RoundInputs, dispatch: Dispatch, tell: Callable[[Lost], None]
    ) -> None:
        self.freed: list[str] = []  # learners whose devices the round freed, in this order
        self.is_closed = False  # whether the round has all that it wants
        self._inputs = inputs
        self._dispatch = dispatch
        self._tell = tell
        self._migration = Migration()
        self._unclaimed: set[str] = set()  # adopted, and not launched yet
        self._aborted: set[str] = set()

    async def begin(self) -> None:
        """Free the devices that the round never needs, adopt what the round before left on its
        engines, and find the episodes that an earlier attempt has begun."""
        for decision in self._inputs.stream_trainer.start():
            await self._free(decision)
        for left in self._inputs.adopted:
            asked = replace(self._inputs.request(left.prompt_id, left.index), attempt=left.attempt)
            if self._dispatch.adopt(left.engine, asked, left.num_kept):
                self._unclaimed.add(left.response_id)
        recorded = {response.generated.response_id for response in self._inputs.recorded}
        begun = self._inputs.begun()
        self._find(begun, {*begun} - recorded - self._unclaimed)

    # --- to the engines ------------------------------------------------------------------------

    def claim(self, name: str) -> bool:
        """Whether this launch is of an adopted response, which runs already."""
        is_adopted = name in self._unclaimed
        self._unclaimed.discard(name)
        return is_adopted

    async def submit(self, responses: Sequence[tuple[str, int]]) -> None:
        """Have these generated, as (prompt id, index), each from where it was left."""
        requests = [self._inputs.request(prompt_id, index) for prompt_id, index in responses]
        self.lose(await self._dispatch.submit([*map(self._migration.resume, requests)]))

    async def abort(self, names: Sequence[str]) -> None:
        self._aborted |= set(names)
        self.lose(await self._dispatch.abort(names))

    async def abort_unclaimed(self) -> None:
        """Give up what was adopted and is not wanted."""
        await self.abort(sorted(self._unclaimed))

    async def leave(self, prompt_ids: Collection[str]) -> None:
        """What runs of these prompts runs on, or is asked again by the next round."""
        running = [name for name in self._dispatch.running if prompt_of(name) in prompt_ids]
        if self._inputs.leaves_running and running:
            self.lose(await self._dispatch.leave(running))
        else:
            await self.abort(running)

    async def scale_down(self, num_accepted: int) -> None:
        """At a milestone of accepted groups: free the devices that the round can do without, and
        move what runs on them."""
        trainer = self._inputs.stream_trainer
        if self.is_closed or not trainer.is_due(num_accepted):
            return
        capacity, running, lost = await self._dispatch.read()
        self.lose(lost)
        reading = Reading(num_accepted=num_accepted, capacity_tokens=capacity, running=running)
        for decision in [] if lost else trainer.handle(reading):
            moving = self._dispatch.retire(decision.engines)
            step, freed = self._inputs.plan.step, ",".join(decision.learners)
            logger.info("step=%d freed=%s migrated=%d", step, freed, len(moving))
            self._migration.leave(decision, moving)
            self.lose(await self._dispatch.abort(moving))
        await self.resume([])

    # --- back from the engines -----------------------------------------------------------------

    def take(self, response: Generated) -> bool:
        """Whether a response that an engine has handed back is home; one that was stopped, and that
        nobody has given up, may go on."""
        self._dispatch.finish(response.response_id)
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
            await self._free(decision)

    def lose(self, engines: Mapping[str, EngineLost]) -> None:
        """Engines are gone: the driver hears of every response that went with them."""
        for name, error in engines.items():
            lost = self._dispatch.remove(name)
            if not self._dispatch.alive and not self.is_closed:
                raise EngineLost(f"no engine is left, {name} was the last: {error}") from error
            names = [request.response_id for request in lost]
            self._migration.stay(names)
            self._find(self._inputs.begun() if names else {}, names)
            self._unclaimed.difference_update(names)
            for request in lost:
                self._tell(Lost(prompt_id=request.prompt_id, index=request.index))

    def _find(self, begun: Mapping[str, Generated], names: Collection[str]) -> None:
        """Of these, which no engine plays any more, what was written down (`begun`) is gone on
        with, where the round may train it."""
        for found in (begun[name] for name in sorted(names) if name in begun):
            if found.prompt_id in self._inputs.prompts and self._inputs.allows(found):
                self._migration.find(found)

    async def _free(self, decision: ScaleDown) -> None:
        """These engines are empty: the learners on their devices may begin."""
        await self._inputs.on_freed(decision)
        self.freed += decision.learners

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
