"""Elastic workers on their way to rounds: the buffer remembers who is there, and a round gets a
handle."""

from __future__ import annotations

from typing import Any

from tasks.cluster.actors import ActorLost
from tasks.elastic.worker_events import GivenUp
from tasks.elastic.workers import event_of
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.rounds.elastic_engines import EngineGone, EngineJoined, EngineLeaving, WorkerNotice
from tasks.run.sample_buffer import ELASTIC_WORKERS, RoundKey, SampleBuffer, Stage
from tasks.run.sample_stream import CAPACITIES
from tasks.run.stream_workers import StreamWorkers

JOINED = WorkerNotice(name="spot.g1", kind="joined", version=3, devices=("spot/cpu",))
LEAVING = WorkerNotice(name="spot.g1", kind="leaving", reason="spot notice")
GONE = WorkerNotice(name="spot.g1", kind="gone", reason="its worker is away")
FIRST, SECOND = RoundKey(1), RoundKey(2)


async def tell(buffer: SampleBuffer, told: WorkerNotice) -> None:
    await buffer.announce_worker(told)


async def heard(buffer: SampleBuffer, key: RoundKey) -> list[object]:
    return (await buffer.take(ELASTIC_WORKERS, key, 9, 0.0))[0]


async def test_every_open_round_hears_of_a_worker_and_those_that_open_while_it_is_there() -> None:
    buffer = SampleBuffer(CAPACITIES)
    await buffer.open_round(FIRST)
    await tell(buffer, JOINED)
    await buffer.open_round(SECOND, beside=(FIRST,))
    assert await heard(buffer, FIRST) == await heard(buffer, SECOND) == [JOINED]


async def test_rounds_that_open_later_hear_nothing_of_an_elastic_worker_that_leaves() -> None:
    for end in (LEAVING, GONE):
        buffer = SampleBuffer(CAPACITIES)
        await buffer.open_round(FIRST)
        await tell(buffer, JOINED)
        await tell(buffer, end)
        assert await heard(buffer, FIRST) == [JOINED, end]
        await buffer.open_round(SECOND)
        assert await heard(buffer, SECOND) == []


async def test_of_an_elastic_worker_that_is_there_a_later_round_hears_what_was_told_last() -> None:
    buffer = SampleBuffer(CAPACITIES)
    await buffer.open_round(FIRST)
    newer = WorkerNotice(name="spot.g1", kind="joined", version=4, devices=("spot/cpu",))
    await tell(buffer, JOINED)
    await tell(buffer, newer)
    await buffer.open_round(SECOND)
    assert await heard(buffer, SECOND) == [newer]


class Told:
    """A stream with these in it."""

    def __init__(self, *told: WorkerNotice) -> None:
        self.told = list(told)

    async def take(
        self, stage: Stage[Any], max_items: int, wait_s: float
    ) -> tuple[list[WorkerNotice], bool]:  # Any: of any record
        assert stage == ELASTIC_WORKERS
        return self.told, False


def unheard(message: dict[str, str]) -> None:
    raise AssertionError(f"nothing is given up: {message}")


def connect(name: str) -> SimulatedEngine:
    if name != "spot.g1":
        raise ActorLost(f"{name} is not there")
    return SimulatedEngine(name, SimulatedEngineConfig())


async def test_a_round_gets_a_handle_on_who_joined_and_hears_who_goes() -> None:
    stream = Told(JOINED, LEAVING, GONE)
    elastic_workers = StreamWorkers(stream, connect, unheard, max_running=8)  # type: ignore[arg-type]
    joined, leaving, gone = await elastic_workers.news(0.0)
    assert isinstance(joined, EngineJoined)
    assert joined.engine.name == "spot.g1"
    assert (joined.devices, joined.version, joined.max_running) == (("spot/cpu",), 3, 8)
    assert leaving == EngineLeaving(name="spot.g1")
    assert gone == EngineGone(name="spot.g1", reason="its worker is away")


async def test_who_joined_and_is_gone_by_now_never_joined() -> None:
    stream = Told(WorkerNotice(name="other.g1", kind="joined", version=3), GONE)
    (gone,) = await StreamWorkers(stream, connect, unheard).news(0.0)  # type: ignore[arg-type]
    assert isinstance(gone, EngineGone)


async def test_an_elastic_worker_that_tells_of_newer_weights_is_looked_for_once() -> None:
    asked: list[str] = []

    def connect_once(name: str) -> SimulatedEngine:
        asked.append(name)
        return connect(name)

    stream = Told(JOINED)
    elastic_workers = StreamWorkers(stream, connect_once, unheard)  # type: ignore[arg-type]
    (first,) = await elastic_workers.news(0.0)
    (second,) = await elastic_workers.news(0.0)
    assert isinstance(first, EngineJoined)
    assert isinstance(second, EngineJoined)
    assert first.engine is second.engine
    assert asked == ["spot.g1"]
    for told in (GONE, JOINED):
        stream.told = [told]
        await elastic_workers.news(0.0)
    assert asked == ["spot.g1", "spot.g1"], "one that was gone is looked for again"


class Giving:
    """A stream that says what it was told."""

    def __init__(self, *failures: Exception) -> None:
        self.told: list[WorkerNotice] = []
        self._failures = list(failures)

    async def announce_worker(self, told: WorkerNotice) -> None:
        if self._failures:
            raise self._failures.pop()
        self.told.append(told)


async def test_a_worker_that_a_round_gives_up_is_gone_for_later_rounds_and_its_keeper_is_told() -> (
    None
):
    stream, heard_by_keeper = Giving(), list[dict[str, str]]()
    elastic_workers = StreamWorkers(stream, connect, heard_by_keeper.append)  # type: ignore[arg-type]
    await elastic_workers.give_up("spot.g1", "no answer")
    assert stream.told == [WorkerNotice(name="spot.g1", kind="gone", reason="no answer")]
    (message,) = heard_by_keeper
    assert event_of(message, 0.0) == GivenUp(name="spot.g1", reason="no answer")


async def test_a_round_goes_on_though_nobody_hears_what_it_gives_up() -> None:
    stream = Giving(ActorLost("no buffer"))
    await StreamWorkers(stream, connect, unheard).give_up("spot.g1", "no answer")  # type: ignore[arg-type]
    assert not stream.told
