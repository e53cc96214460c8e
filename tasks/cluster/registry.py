"""The actors of a run on named workers: made, found lost, made anew.

    registry.create_all(workers, recipes, deadline_s)   in the flow
    registry.remote("engine-0")                         its handle there

Dask never revives a lost actor under its key, so every creation gets a new generation; and its
resources reserve nothing for actors, so placement is by worker name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
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

PING_S = 20.0  # a living actor answers beside whatever it does
# A worker may be killed by accident while it builds; one that dies of building dies again.
NUM_BUILDS = 2
NOTICED_WITHIN_S = 1.0  # the scheduler hears of a death by then
RECORDED_WITHIN_S = 5.0  # a nanny hears of the end of its process a moment after the scheduler does
ELSEWHERE = (
    "its worker was started elsewhere, whose own output and that of its nanny say how it ended"
)

Recipe = tuple[Callable[..., object], tuple[object, ...]]  # the actor's class and its arguments


class ActorRegistry:
    """The run's actors by name, kept by the flow: which generation lives where."""

    def __init__(self, client: Client, run_id: str, num_builds: int = NUM_BUILDS) -> None:
        """num_builds: processes that an actor may be built in, one after the death of another."""
        self._client = client
        self._num_builds = num_builds
        self._run_id = run_id
        self._futures: dict[str, Any] = {}  # Any: Dask futures
        self._actors: dict[str, Any] = {}  # Any: Dask's proxies
        self._addresses: dict[str, str] = {}
        self._workers: dict[str, str] = {}
        self._born_s: dict[str, float] = {}
        self._generation: dict[str, int] = {}
        self._closed = False
        self._publishing = threading.Lock()  # nobody forgets what is being published

    def create_all(
        self, workers: Mapping[str, str], actors: Mapping[str, Recipe], deadline_s: float
    ) -> None:
        """Start several actors side by side.

        Raises the constructor's own error, TimeoutError with the name that is still missing, or
        ActorLost when a worker dies under an actor and its successor dies as well; all others are
        built by then.
        """
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
        """Have others find it. Raises ActorLost where another thread has forgotten it meanwhile:
        the scheduler would warn of a key that it does not know, and callers wait for it in vain."""
        with self._publishing:
            future = self._futures.get(name)
            if future is None:
                self._actors.pop(name, None)
                raise ActorLost(f"{name} was given up while it was built")
            published = published_name(self._run_id, name)
            self._client.publish_dataset(future, name=published, override=True)

    def accounts(self) -> tuple[str, ...]:
        """A sentence for every actor whose process has ended under it. Of a joined cluster nothing
        is known here."""
        found = ((name, self._death(name)) for name in self._gone())
        return tuple(
            f"{name} is lost: {account(death.exit_code, death.lines, death.log)}"
            for name, death in found
            if death is not None
        )

    def _gone(self) -> list[str]:
        """The actors whose worker is away, looked for a moment: a caller may hear of a death before
        the scheduler does."""
        ends = time.monotonic() + NOTICED_WITHIN_S
        while True:
            now = worker_addresses(self._client)
            gone = [name for name in self._futures if not self._is_there(name, now)]
            if gone or time.monotonic() >= ends:
                return gone
            time.sleep(0.05)

    def _is_there(self, name: str, addresses: Mapping[str, str]) -> bool:
        """Whether the process that the actor was put into is among these workers."""
        return addresses.get(self._workers[name]) == self._addresses[name]

    def _finish(self, name: str, recipe: Recipe, ends: float) -> None:
        """Wait until the actor is built, by a second process when the first one dies of it."""
        for build in range(1, self._num_builds + 1):
            if self._is_built(name, ends):
                return
            self._check_open()
            lost = f"{name} died while it was built: {self._account(name)}"
            if build == self._num_builds:
                raise ActorLost(lost)
            logger.warning("build=%d of %d: %s", build, self._num_builds, lost)
            self._submit(name, recipe, self._workers[name], ends)

    def _is_built(self, name: str, ends: float) -> bool:
        """Wait for it; False when its worker died."""
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
                    if not means_lost(error):  # else it was built, and has died meanwhile
                        raise
                    return False
                return True
            now = worker_addresses(self._client)
            if now and not self._is_there(name, now):  # a scheduler that says nothing says nothing
                return False
        raise TimeoutError(f"{name} was not ready in time on worker {self._workers[name]}")

    def _account(self, name: str) -> str:
        """How the process of an actor's worker ended, as far as that is known."""
        death = self._death(name)
        return ELSEWHERE if death is None else account(death.exit_code, death.lines, death.log)

    def _death(self, name: str) -> Death | None:
        """The end of a process that is gone; its nanny may hear of it a moment after we do."""
        ends = time.monotonic() + (RECORDED_WITHIN_S if self._client.cluster is not None else 0.0)
        while (death := death_of(self._client, self._workers[name], self._born_s[name])) is None:
            if time.monotonic() >= ends:
                return None
            time.sleep(0.05)
        return death

    def _submit(self, name: str, recipe: Recipe, worker: str, ends: float) -> None:
        self.discard(name)
        address = self._address(worker, ends)
        factory, args = recipe
        generation = self._generation[name] = self._generation.get(name, 0) + 1
        key = f"{self._run_id}-{name}-g{generation}-{time.time_ns():x}"
        born_s = time.time()
        options = {"actor": True, "workers": [address], "allow_other_workers": False, "pure": False}
        self._futures[name] = self._client.submit(factory, *args, key=key, **options)
        self._addresses[name] = address
        self._workers[name] = worker
        self._born_s[name] = born_s

    def _address(self, worker: str, ends: float) -> str:
        """The worker's address now; a restarted worker keeps its name and gets a new one."""
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
        """The actors that were ready once and not discarded; some of them may be lost."""
        return frozenset(self._actors)

    def environment(
        self, workers: Sequence[str], variable: str, deadline_s: float
    ) -> tuple[str, ...]:
        """What an environment variable is on each of these workers, empty where it is not set.
        Waits for those that are away. Raises TimeoutError with the name of one that stays away."""
        ends = time.monotonic() + deadline_s
        asked = [self._address(name, ends) for name in workers]
        values: dict[str, str] = self._client.run(os.environ.get, variable, "", workers=asked)
        return tuple(values[address] for address in asked)

    async def lost(self, among: Collection[str] = ()) -> tuple[str, ...]:
        """Names of the actors that do not answer a ping, of these or of all."""
        names = tuple(name for name in self._actors if not among or name in among)
        answers = await asyncio.gather(*(self._answers(name) for name in names))
        return tuple(name for name, answered in zip(names, answers, strict=True) if not answered)

    async def _answers(self, name: str) -> bool:
        try:
            await self.remote(name).ping(PING_S)
        except (RuntimeError, TimeoutError):  # gone, or it says itself that it cannot go on
            return False
        return True

    def remote(self, name: str) -> Remote:
        """The flow's own handle on an actor; works on any event loop. Raises ActorLost if there is
        none by this name."""
        if name not in self._actors:
            raise ActorLost(f"{name} is not there: it was lost and has not been made anew")
        return Remote(name, self._actors[name], self._client.loop.asyncio_loop)

    def restart(self, workers: Sequence[str], deadline_s: float) -> None:
        """Give these workers new processes and forget the actors that they held."""
        for name in [name for name in self._futures if self._workers[name] in workers]:
            self.discard(name)
        renew_workers(self._client, workers, deadline_s)

    def restart_living(self, names: Sequence[str], deadline_s: float) -> None:
        """Restart the workers of these actors; not those whose process has ended, because their
        nanny has given them another one."""
        now = worker_addresses(self._client)
        made = [name for name in names if name in self._futures]
        living = [name for name in made if self._is_there(name, now)]
        self.restart([self._workers[name] for name in living], deadline_s)

    def discard(self, name: str) -> None:
        """Forget an actor, alive or not; call its close() before if it holds processes."""
        with self._publishing:
            future = self._futures.pop(name, None)
            self._actors.pop(name, None)
            if future is None:
                return
            if published_name(self._run_id, name) in self._client.list_datasets():
                self._client.unpublish_dataset(published_name(self._run_id, name))
            self._client.cancel([future], force=True)

    def close(self) -> None:
        """Forget every actor, and make no more of them."""
        self._closed = True
        for name in list(self._futures):
            self.discard(name)

    def _check_open(self) -> None:
        """ActorLost in a thread that still makes actors when the run has been stopped."""
        if self._closed:
            raise ActorLost("no actor is made any more: the run ends")
