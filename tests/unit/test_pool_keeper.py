"""A lost worker of environments is made anew while a run goes on, so many times and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from tasks.cluster.actors import ActorLost
from tasks.environments.pools import pool_actor
from tasks.environments.pools.pool_actor import PoolKeeper


class Workers:
    """Two of them; `lost` says which."""

    def __init__(self, *lost: str, refuses: Exception | None = None) -> None:
        self.lost, self.made, self._refuses = set(lost), list[str](), refuses
        self.looks = asyncio.Event()

    async def look(self, names: Collection[str]) -> tuple[str, ...]:
        self.looks.set()
        return tuple(sorted(self.lost & set(names)))

    async def make(self, names: Sequence[str]) -> None:
        self.made += names
        if self._refuses:
            raise self._refuses
        self.lost -= set(names)


async def kept(workers: Workers, num_looks: int, max_remakes: int = 3) -> list[str]:
    """What is made in so many looks."""
    keeper = PoolKeeper(("a", "b"), workers.look, workers.make, max_remakes)
    keeper.start()
    keeper.start()  # harmless
    for _ in range(num_looks):
        workers.looks.clear()
        await asyncio.wait_for(workers.looks.wait(), 10)
    await asyncio.sleep(0)
    keeper.stop()
    return workers.made


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_actor, "CHECK_S", 0.0)


async def test_the_lost_one_is_made_anew_once() -> None:
    assert await kept(Workers("b"), 5) == ["b"]


@pytest.mark.parametrize(
    "refuses",
    [
        ActorLost("it died while it was built"),
        ValueError("the fork server of their processes did not start: not ready after 180 s"),
    ],
)
async def test_one_that_cannot_be_made_is_given_up_and_the_others_are_not(
    refuses: Exception,
) -> None:
    workers = Workers("a", refuses=refuses)
    assert await kept(workers, 8, max_remakes=3) == ["a"] * 3


async def test_a_look_that_fails_is_followed_by_another() -> None:
    workers = Workers("b")
    look, fails = workers.look, iter([True, True, False])

    async def now_and_then(names: Collection[str]) -> tuple[str, ...]:
        found = await look(names)
        if next(fails, False):
            raise OSError("the connection broke")
        return found

    workers.look = now_and_then  # type: ignore[method-assign]
    assert await kept(workers, 5) == ["b"]


async def test_without_workers_nothing_is_looked_for() -> None:
    workers = Workers("a")
    keeper = PoolKeeper((), workers.look, workers.make, 3)
    keeper.start()
    await asyncio.sleep(0)
    assert not workers.looks.is_set()
