"""Creates the actors of a run on named workers, finds lost ones, and replaces them.

Dask never revives a lost actor under its key, so every creation gets a new generation. Dask's
resources reserve nothing for actors, so actors are placed by worker name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError

from tasks.cluster.actors import ActorLost, Remote, means_lost, published_name, result_of
from tasks.cluster.dask_cluster import check_coming, worker_addresses
from tasks.cluster.deaths import Death, account
from tasks.cluster.nanny import death_of
from tasks.cluster.ownership import renew_workers

logger = logging.getLogger(__name__)

PING_S = 20.0  # a living actor answers within this time, even while it works
# A worker may be killed by accident while it builds; one that dies of building dies again.
NUM_BUILDS = 2
NOTICED_WITHIN_S = 1.0  # the scheduler has noticed a death by then, maybe after a caller
RECORDED_WITHIN_S = 5.0  # a nanny notices the end of its process a moment after the scheduler
ELSEWHERE = (
    "its worker was started elsewhere, whose own output and that of its nanny say how it ended"
)

Recipe = tuple[Callable[..., object], tuple[object, ...]]  # the actor's class and its arguments


class ActorRegistry:
    """The flow's record of the run's actors, by name: their generation, worker and address."""

    def __init__(self, client: Client, run_id: str, num_builds: int = NUM_BUILDS) -> None:
        """num_builds: attempts to build an actor; another one follows if its process dies."""
        self._client = client
        self._num_builds = num_builds
        self._run_id = run_id
        self._futures: dict[str, Any] = {}  # Any: Dask futures
        self._actors: dict[str, Any] = {}  # Any: Dask's proxies
        self._addresses: dict[str, str] = {}
        self._workers: dict[str, str] = {}
        self._born_s: dict[str, float] = {}
        self._generation = Counter[str]()
        self._closed = False
        self._publishing = threading.Lock()  # no actor is discarded while it is being published

    def create_all(
        self, workers: Mapping[str, str], actors: Mapping[str, Recipe], deadline_s: float
    ) -> None:
        """Build several actors in parallel. workers: worker of each actor, by the actor's name.
        Raises the constructor's own error, TimeoutError, or ActorLost if num_builds processes died
        of one actor; all others are built by then."""
        ends = time.monotonic() + deadline_s
        for name, recipe in actors.items():
            self._submit(name, recipe, workers[name], ends)
        losses = []
        for name, recipe in actors.items():
            try:
                self._finish(name, recipe, ends)
                self._publish(name)
            except ActorLost as loss:
                losses.append(loss)
        if losses:
            raise losses[0]

    def _publish(self, name: str) -> None:
        """Publish the actor, so that tasks find it by name; ActorLost if it has been discarded."""
        with self._publishing:
            future = self._futures.get(name)
            if future is None:
                self._actors.pop(name, None)
                raise ActorLost(f"{name} was given up while it was built")
            published = published_name(self._run_id, name)
            self._client.publish_dataset(future, name=published, override=True)

    def accounts(self) -> tuple[str, ...]:
        """One sentence for every actor whose process has ended, with the reason. Empty for a joined
        cluster, whose processes are not known here."""
        ends = time.monotonic() + NOTICED_WITHIN_S
        while not (gone := self._gone()) and time.monotonic() < ends:
            time.sleep(0.05)
        found = ((name, self._death(name)) for name in gone)
        return tuple(
            f"{name} is lost: {account(death.exit_code, death.lines, death.log)}"
            for name, death in found
            if death is not None
        )

    def _gone(self) -> list[str]:
        """Names of the actors whose worker is away."""
        now = worker_addresses(self._client)
        return [name for name in self._futures if not self._is_there(name, now)]

    def _is_there(self, name: str, addresses: Mapping[str, str]) -> bool:
        """True if the actor's worker is still the process that the actor was built in."""
        return addresses.get(self._workers[name]) == self._addresses[name]

    def _finish(self, name: str, recipe: Recipe, ends: float) -> None:
        """Wait until the actor is built, anew in the next process if one dies."""
        for build in range(1, self._num_builds + 1):
            if self._is_built(name, ends):
                return
            self._check_open()
            death = self._death(name)
            how = ELSEWHERE if death is None else account(death.exit_code, death.lines, death.log)
            lost = f"{name} died while it was built: {how}"
            if build == self._num_builds:
                raise ActorLost(lost)
            logger.warning("build=%d of %d: %s", build, self._num_builds, lost)
            self._submit(name, recipe, self._workers[name], ends)

    def _is_built(self, name: str, ends: float) -> bool:
        """Wait until the actor is built; False if its worker died."""
        while time.monotonic() < ends:
            future = self._futures.get(name)
            if future is None:
                raise ActorLost(f"{name} was given up while it was built")
            with suppress(TimeoutError):
                try:
                    self._actors[name] = result_of(future, 0.5)
                except (KilledWorker, FutureCancelledError):
                    return False
                except RuntimeError as error:
                    if not means_lost(error):  # else the actor was built, and its worker has died
                        raise
                    return False
                return True
            now = worker_addresses(self._client)
            if now and not self._is_there(name, now):  # empty if the scheduler did not answer
                return False
        raise TimeoutError(f"{name} was not ready in time on worker {self._workers[name]}")

    def _death(self, name: str) -> Death | None:
        """Record of the end of the actor's process; its nanny may notice that after the flow."""
        ends = time.monotonic() + (RECORDED_WITHIN_S if self._client.cluster is not None else 0.0)
        worker, born_s = self._workers[name], self._born_s[name]
        while (death := death_of(self._client, worker, born_s)) is None and time.monotonic() < ends:
            time.sleep(0.05)
        return death

    def _submit(self, name: str, recipe: Recipe, worker: str, ends: float) -> None:
        self.discard(name)
        address = self._address(worker, ends)
        factory, args = recipe
        self._generation[name] += 1
        key = f"{self._run_id}-{name}-g{self._generation[name]}-{time.time_ns():x}"
        self._born_s[name] = time.time()
        options = {"actor": True, "workers": [address], "allow_other_workers": False, "pure": False}
        self._futures[name] = self._client.submit(factory, *args, key=key, **options)
        self._addresses[name] = address
        self._workers[name] = worker

    def _address(self, worker: str, ends: float) -> str:
        """Present address of the worker, a new one after a restart; waits while it is away."""
        while True:
            self._check_open()
            addresses = worker_addresses(self._client)
            if worker in addresses:
                return addresses[worker]
            check_coming(self._client, (worker,))
            if time.monotonic() > ends:
                raise TimeoutError(
                    f"worker {worker} did not come back in time; alive:"
                    f" {', '.join(sorted(map(str, addresses))) or 'none'}"
                )
            time.sleep(0.2)

    @property
    def names(self) -> frozenset[str]:
        """Names of the actors that were built and not discarded; some of them may be lost."""
        return frozenset(self._actors)

    def environment(
        self, workers: Sequence[str], variable: str, deadline_s: float
    ) -> tuple[str, ...]:
        """Value of an environment variable in each of these workers, empty if not set; TimeoutError
        for one that is not back within deadline_s."""
        ends = time.monotonic() + deadline_s
        asked = [self._address(name, ends) for name in workers]
        values: dict[str, str] = self._client.run(os.environ.get, variable, "", workers=asked)
        return tuple(values[address] for address in asked)

    async def lost(self, among: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the actors that do not answer a ping. among: actors to ask; empty for all."""
        names = tuple(name for name in self._actors if not among or name in among)
        answers = await asyncio.gather(*(self._answers(name) for name in names))
        return tuple(name for name, answered in zip(names, answers, strict=True) if not answered)

    async def _answers(self, name: str) -> bool:
        try:
            await self.remote(name).call("ping", deadline_s=PING_S)
        except (RuntimeError, TimeoutError):  # gone, or it reports that it cannot go on
            return False
        return True

    def remote(self, name: str) -> Remote:
        """The flow's handle on an actor, for any event loop. Raises ActorLost if there is none."""
        if name not in self._actors:
            raise ActorLost(f"{name} is not there: it was lost and has not been made anew")
        return Remote(name, self._actors[name], self._client.loop.asyncio_loop)

    def restart(self, workers: Sequence[str], deadline_s: float) -> None:
        """Restart the processes of these workers and discard the actors that they held."""
        for name in [name for name in self._futures if self._workers[name] in workers]:
            self.discard(name)
        renew_workers(self._client, workers, deadline_s)

    def restart_living(self, names: Sequence[str], deadline_s: float) -> None:
        """Restart the workers of these actors, except workers whose process has ended: their nanny
        has started another one already."""
        now = worker_addresses(self._client)
        made = [name for name in names if name in self._futures]
        living = [name for name in made if self._is_there(name, now)]
        self.restart([self._workers[name] for name in living], deadline_s)

    def discard(self, name: str) -> None:
        """Forget an actor, if it is there. If it holds processes, call its close() before."""
        with self._publishing:
            future = self._futures.pop(name, None)
            self._actors.pop(name, None)
            if future is None:
                return
            if published_name(self._run_id, name) in self._client.list_datasets():
                self._client.unpublish_dataset(published_name(self._run_id, name))
            self._client.cancel([future], force=True)

    def close(self) -> None:
        """Discard every actor, and refuse to build more."""
        self._closed = True
        for name in list(self._futures):
            self.discard(name)

    def _check_open(self) -> None:
        if self._closed:  # a thread may still build actors then
            raise ActorLost("no actor is made any more: the run ends")
