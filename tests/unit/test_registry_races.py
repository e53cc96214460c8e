"""An actor that is forgotten by one thread while another makes it: Dask is never told of a key that
it does not know any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tasks.cluster.actors import ActorLost
from tasks.cluster.registry import ActorRegistry

SPOT = {"spot.g1": "spot"}
MADE = {"spot.g1": (object, ())}


class Scheduler:
    """A Dask client, and a future of it, that remembers what it was told."""

    cluster = None

    def __init__(self) -> None:
        self.told: list[str] = []
        self.published: list[str] = []
        self.on_result: Callable[[], None] = lambda: None
        self.on_publish: Callable[[], None] = lambda: None
        self.scheduler = self

    def sync(self, ask: Callable[..., object], **options: int) -> object:
        return ask(**options)

    def identity(self, n_workers: int) -> dict[str, object]:
        return {"workers": {"tcp://there": {"name": "spot"}}}

    def submit(self, *_: object, **__: object) -> Any:  # Any: stands in for Dask's future
        return self

    def done(self) -> bool:
        return True

    def result(self, timeout: float) -> object:
        self.on_result()
        return object()

    def publish_dataset(self, future: object, name: str, override: bool) -> None:
        self.on_publish()
        assert "cancelled" not in self.told, "the scheduler does not know this key any more"
        self.told.append("published")
        self.published.append(name)

    def list_datasets(self) -> list[str]:
        return self.published

    def unpublish_dataset(self, name: str) -> None:
        self.told.append("unpublished")
        self.published.remove(name)

    def cancel(self, futures: object, force: bool) -> None:
        self.told.append("cancelled")


def made(client: Scheduler) -> ActorRegistry:
    return ActorRegistry(client, "run", num_builds=1)  # type: ignore[arg-type]


def test_an_actor_that_is_forgotten_as_soon_as_it_is_built_is_not_published() -> None:
    client = Scheduler()
    registry = made(client)
    client.on_result = lambda: registry.discard("spot.g1")
    with pytest.raises(ActorLost, match=r"spot\.g1 was given up while it was built"):
        registry.create_all(SPOT, MADE, 5.0)
    assert client.told == ["cancelled"]
    assert registry.names == frozenset()


def test_an_actor_that_is_forgotten_while_it_is_published_is_published_first() -> None:
    client = Scheduler()
    registry = made(client)
    forgetting = threading.Thread(target=registry.discard, args=("spot.g1",))

    def begin() -> None:
        forgetting.start()
        forgetting.join(0.2)  # it would be through by now if nothing held it up

    client.on_publish = begin
    registry.create_all(SPOT, MADE, 5.0)
    forgetting.join(5.0)
    assert client.told == ["published", "unpublished", "cancelled"]
    assert client.published == []
