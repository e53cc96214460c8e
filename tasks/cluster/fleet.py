"""The actors of a run: sample buffer, engines and learner ranks; started together, replaced one by one when their worker dies.

A lost engine or buffer is simply made anew. Learner ranks form one process group, so that one lost rank means new ones for all,
and the caller must restore them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from distributed import Client

from tasks.cluster.actors import ActorLost, ActorRegistry
from tasks.cluster.devices import WorkerSpec
from tasks.engines.remote import EngineActor
from tasks.engines.vllm_engine import EngineConfig
from tasks.learner.remote import LearnerActor
from tasks.learner.trainer import LearnerConfig
from tasks.plan import BUFFER, RunContext
from tasks.sample_stream import CAPACITIES, BufferActor

logger = logging.getLogger(__name__)


class Fleet:
    """Owns the run's actors; leaving the block closes them."""

    def __init__(
        self, client: Client, run: RunContext, specs: Sequence[WorkerSpec], engine: EngineConfig, learner: LearnerConfig, start_s: float
    ) -> None:
        self._registry = ActorRegistry(client, run.run_id)
        self._run = run
        self._specs = {spec.name: spec for spec in specs}
        self._engine = engine
        self._learner = learner
        self._start_s = start_s

    def __enter__(self) -> Fleet:
        self._create((BUFFER, *self._run.learners, *self._run.engines))
        asyncio.run_coroutine_threadsafe(self._join_learners(), self._registry.remote(BUFFER).loop).result(self._start_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._registry.remote(BUFFER).loop)
        with suppress(TimeoutError, ActorLost, RuntimeError, OSError):  # what cannot be ended any more ends with its worker
            ending.result(30)
        self._registry.close()

    async def open_round(self, key: int) -> None:
        """Make room for a round's responses; what an older attempt left in the buffer is dropped."""
        await self._registry.remote(BUFFER).call("open_round", key, deadline_s=30)

    async def stop_round(self, reason: str) -> None:
        """Wake every coordinator that waits, so that it ends."""
        await self._registry.remote(BUFFER).call("abort", reason, deadline_s=30)

    async def replace_lost(self) -> tuple[str, ...]:
        """Make every actor anew whose worker died; the names that were replaced. All learners count as one."""
        lost = set(await self._registry.lost())
        if lost & set(self._run.learners):  # the survivors are in a group with the dead: new processes for all
            survivors = sorted(set(self._run.learners) - lost)
            await asyncio.to_thread(self._registry.restart, survivors)
            lost |= set(self._run.learners)
        if lost:
            logger.warning("replacing lost actors names=%s", ",".join(sorted(lost)))
            await asyncio.to_thread(self._create, tuple(sorted(lost)))
        if lost & set(self._run.learners):
            await self._join_learners()
        return tuple(sorted(lost))

    def _create(self, names: Sequence[str]) -> None:
        workers = {name: "control" if name == BUFFER else name for name in names}
        actors = {name: self._recipe(name) for name in names}
        self._registry.create_all(workers, actors, self._start_s)

    def _recipe(self, name: str) -> tuple[type, tuple[object, ...]]:
        if name == BUFFER:
            return BufferActor, (CAPACITIES,)
        cores = self._specs[name].core_ids
        if name in self._run.engines:
            return EngineActor, (self._engine, self._run.model_path, name, cores, self._run.seed)
        rank, device = self._run.learners.index(name), self._run.devices[name].partition(":")[0]
        return LearnerActor, (self._learner, self._run.model_path, rank, len(self._run.learners), cores, device)

    async def _join_learners(self) -> None:
        ranks = [self._registry.remote(name) for name in self._run.learners]
        meeting_point = await ranks[0].call("rendezvous", deadline_s=30)
        await asyncio.gather(*(rank.call("join", meeting_point, self._start_s, deadline_s=self._start_s + 10) for rank in ranks))

    async def _end(self) -> None:
        """Wake whoever waits, then free the devices."""
        await self.stop_round("the run ends")
        for name in self._run.engines:
            try:
                await self._registry.remote(name).call("close", deadline_s=20)
            except (ActorLost, TimeoutError) as error:
                logger.warning("engine did not close name=%s reason=%s", name, error)
