"""What the keeper does about elastic workers: built, loaded, told to rounds, withdrawn,
forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from artifacts.records import Running, WeightsRef
from tasks.cluster.actors import ActorLost
from tasks.elastic import keeper
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.config import LimitMissed
from tasks.elastic.keeper import ElasticKeeper
from tasks.elastic.worker_events import (
    AdmittedWorker,
    CardRead,
    Ending,
    GivenUp,
    Leaves,
    Polled,
    WorkerEvent,
)
from tasks.engines.base import EngineLost
from tasks.learner.reports import PublishReport
from tasks.learner.weight_check import WeightCheckFailed
from tasks.rounds.elastic_engines import WorkerNotice
from tests.unit.worker_factories import CARD, RULES, shown


class Workers:
    """Those at these addresses, which all show the same card."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.send: Callable[[WorkerEvent], object] = lambda event: None
        self.ended = list[tuple[str, str]]()  # how, address
        self.why = list[str]()  # they must begin anew

    def subscribe(self, receive: Callable[[WorkerEvent], object]) -> None:
        self.send = receive

    async def poll(self) -> Polled:
        return Polled(at_s=0.0, addresses=frozenset(self.addresses))

    async def read_card(self, address: str) -> CardRead:
        return shown(CARD, address)

    async def end(self, address: str, how: Ending, reason: str) -> None:
        self.ended.append((how, address))
        if how == "renew":
            self.why.append(reason)

    def dismiss_all(self, addresses: Sequence[str], reason: str) -> None:
        self.ended += [(reason, address) for address in addresses]

    def close(self) -> None:
        self.ended.append(("closed", ""))


class Engines:
    """Engines that do as they are told, or fail."""

    def __init__(self, *failures: Exception) -> None:
        """failures: of the loads, in order."""
        self.failures = list(failures)
        self.done = list[str]()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.is_idle = True
        self.opened = 0

    async def pull(self, name: str, weights: WeightsRef) -> WeightsRef:
        return replace(weights, path=f"{name}/{weights.version}")

    async def open(self) -> None:
        self.opened += 1

    async def build(self, worker: AdmittedWorker) -> None:
        self.done.append(f"build {worker.name}")

    async def load(self, name: str, published: PublishReport, running: Running) -> None:
        await self.may_load.wait()
        weights = published.weights
        self.done.append(f"load {weights.path} {running}")
        if self.failures:
            raise self.failures.pop(0)

    async def is_empty(self, name: str) -> bool:
        return self.is_idle

    async def discard(self, name: str) -> None:
        self.done.append(f"discard {name}")

    def close(self) -> None:
        self.done.append("close")


def published(version: int) -> PublishReport:
    return PublishReport(
        weights=WeightsRef(version=version, path="", digest=""),
        probe_difference_nats=None,
        check_s=0.0,
        spans=(),
    )


class Rounds:
    """What they were told."""

    def __init__(self) -> None:
        self.notices = list[WorkerNotice]()
        self.failure: Exception | None = None

    async def notify(self, notice: WorkerNotice) -> None:
        if self.failure is not None:
            raise self.failure
        self.notices.append(notice)

    @property
    def kinds(self) -> list[tuple[str, str, int]]:
        return [(notice.name, notice.kind, notice.version) for notice in self.notices]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "POLL_S", 0.0)


@asynccontextmanager
async def keeping(
    workers: Workers,
    engines: Engines,
    rounds: Rounds,
    save_names: Callable[[], None] = lambda: None,
) -> AsyncIterator[ElasticKeeper]:
    keeper = ElasticKeeper(WorkerAdmission(RULES), workers, engines, rounds.notify, save_names)
    await keeper.start()
    await keeper.start()  # harmless
    try:
        yield keeper
    finally:
        keeper.stop(is_over=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0)


JOINED = ("spot.g1", "joined", 3)


async def test_a_worker_is_told_to_rounds_when_its_engine_holds_the_newest_weights() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await until(lambda: engines.done == ["build spot.g1"])
        assert not rounds.notices, "there are no weights yet"
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        assert rounds.notices[0].devices == ("spot/cpu",)
        assert engines.done[1:] == ["load spot.g1/3 drop"], "the version that it pulled"
        (worker,) = keeper.workers
        assert worker.joined_s is not None
        assert min(worker.took.build_s, worker.took.pull_s, worker.took.load_s) > 0
    assert engines.opened == 1
    assert workers.ended == [("the run is over", "a"), ("closed", "")]
    assert engines.done[-1] == "close"


async def test_a_store_that_is_away_when_an_elastic_worker_comes_costs_no_elastic_worker() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()

    def save_names() -> None:
        raise OSError("the bucket does not answer")

    async with keeping(workers, engines, rounds, save_names) as keeper:
        await keeper.publish(published(3))
        await until(lambda: rounds.kinds == [JOINED])


async def test_a_poll_that_fails_is_followed_by_another() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    poll, fails = workers.poll, iter([True, True])

    async def now_and_then() -> Polled:
        if next(fails, False):
            raise ValueError("the scheduler answers something else")
        return await poll()

    workers.poll = now_and_then  # type: ignore[method-assign]
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3))
        await until(lambda: rounds.kinds == [JOINED])


async def test_before_a_load_that_drops_what_runs_no_round_may_ask_the_elastic_worker() -> None:
    """It is withdrawn before `publish` returns, and is back when it has loaded."""
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        engines.may_load.clear()
        await keeper.publish(published(4), Running.DROP)
        assert rounds.kinds == [JOINED, ("spot.g1", "gone", -1)]
        engines.may_load.set()
        await until(lambda: len(rounds.notices) == 3)
        assert rounds.kinds[2] == ("spot.g1", "joined", 4)


async def test_a_load_that_drops_nothing_leaves_the_elastic_worker_where_it_is() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        await keeper.publish(published(4), Running.INTERRUPT)
        await until(lambda: len(rounds.notices) == 2)
        assert rounds.kinds[1] == ("spot.g1", "joined", 4)
        assert engines.done[-1] == "load spot.g1/4 interrupt"


async def test_of_versions_that_are_published_meanwhile_the_newest_is_loaded_and_told() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    engines.may_load.clear()
    async with keeping(workers, engines, rounds) as keeper:
        for version in (3, 4, 5):
            await keeper.publish(published(version), Running.DROP)
            await asyncio.sleep(0.01)
        engines.may_load.set()
        await until(lambda: bool(rounds.notices))
        assert rounds.kinds == [("spot.g1", "joined", 5)]


async def test_a_version_whose_file_is_gone_is_passed_over_for_a_newer_one() -> None:
    workers, engines, rounds = Workers("a"), Engines(FileNotFoundError("3")), Rounds()
    engines.may_load.clear()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: engines.done == ["build spot.g1"])
        await asyncio.sleep(0.01)
        await keeper.publish(published(4), Running.DROP)
        engines.may_load.set()
        await until(lambda: rounds.kinds == [("spot.g1", "joined", 4)])
    assert workers.ended[0] == ("the run is over", "a")


async def test_an_elastic_worker_that_fails_the_gate_ends_and_the_run_goes_on() -> None:
    workers, engines, rounds = Workers("a"), Engines(WeightCheckFailed("another tensor")), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: ("renew", "a") in workers.ended)
        assert rounds.kinds == [("spot.g1", "gone", -1)]
        (worker,) = keeper.workers
        assert worker.reason == "WeightCheckFailed: another tensor"
        await until(lambda: "discard spot.g1" in engines.done)


@pytest.mark.parametrize("loss", [EngineLost("gone"), ActorLost("gone")])
async def test_a_worker_that_is_away_has_not_failed(loss: Exception) -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        workers.addresses.clear()
        engines.failures.append(loss)
        await keeper.publish(published(4), Running.DROP)
        await until(lambda: keeper.workers[0].state == "gone")
        assert keeper.workers[0].reason == "its worker is away"


async def test_an_elastic_worker_that_leaves_is_dismissed_when_it_has_handed_everything_over() -> (
    None
):
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    engines.is_idle = False
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        workers.send(Leaves(dask_name="spot", reason="spot notice"))
        await until(lambda: len(rounds.notices) == 2)
        assert rounds.kinds[1] == ("spot.g1", "leaving", -1)
        await keeper.publish(published(4), Running.DROP)
        await asyncio.sleep(0.01)
        assert not workers.ended
        engines.is_idle = True
        await until(lambda: ("dismiss", "a") in workers.ended)
        assert rounds.kinds[2] == ("spot.g1", "gone", -1)
        assert engines.done.count("load spot.g1/4 drop") == 0


async def test_a_lost_buffer_costs_no_elastic_worker() -> None:
    """The weights are published again after it is made anew, and with them the elastic worker is
    told."""
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    rounds.failure = ActorLost("sample-buffer is gone")
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: "load spot.g1/3 drop" in engines.done)
        await asyncio.sleep(0.01)
        rounds.failure = None
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds[-1:] == [JOINED])


async def test_an_elastic_worker_that_misses_a_limit_is_told_which() -> None:
    missed = LimitMissed("load_s", "spot.g1: the load of version 3 must take 5 s at most")
    workers, engines, rounds = Workers("a"), Engines(missed), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: bool(workers.why))
        (worker,) = keeper.workers
        assert worker.missed == "load_s"
        assert workers.why == [worker.reason]
        assert "the load of version 3 must take 5 s at most" in worker.reason


async def test_an_elastic_worker_that_lags_is_told_of_with_every_version_that_it_loads() -> None:
    """Rounds ask it for what its weights are new enough for, unless a load drops what it runs."""
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        engines.may_load.clear()
        await keeper.publish(published(4), Running.INTERRUPT)
        await asyncio.sleep(0.01)
        await keeper.publish(published(5), Running.INTERRUPT)
        engines.may_load.set()
        await until(lambda: len(rounds.notices) == 3)
        assert [version for _, _, version in rounds.kinds] == [3, 4, 5]


async def test_a_worker_that_missed_a_load_that_drops_drops_what_it_runs_with_the_next() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        keeper._newest = published(4), Running.DROP
        keeper._number = keeper._dropping = keeper._number + 1
        await keeper.publish(published(5), Running.INTERRUPT)
        await until(lambda: rounds.kinds[-1] == ("spot.g1", "joined", 5))
        assert engines.done[-1] == "load spot.g1/5 drop"


async def test_an_elastic_worker_that_a_round_gave_up_is_withdrawn_and_begins_anew() -> None:
    """It lives, and may still run what the round had asked: only another process is asked again."""
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        workers.send(GivenUp(name="spot.g1", reason="no answer for 60 s"))
        workers.send(GivenUp(name="nobody", reason="no answer for 60 s"))
        await until(lambda: ("renew", "a") in workers.ended)
        assert rounds.kinds[1] == ("spot.g1", "gone", -1)
        assert workers.why == ["no answer for 60 s"]
        workers.addresses = {"b"}
        await until(lambda: rounds.kinds[-1] == ("spot.g2", "joined", 3))


async def test_a_worker_that_a_round_gave_up_because_its_process_died_is_gone_for_that() -> None:
    workers, engines, rounds = Workers("a"), Engines(), Rounds()
    async with keeping(workers, engines, rounds) as keeper:
        await keeper.publish(published(3), Running.DROP)
        await until(lambda: rounds.kinds == [JOINED])
        workers.addresses.clear()
        workers.send(GivenUp(name="spot.g1", reason="no answer for 60 s"))
        await until(lambda: rounds.kinds[-1] == ("spot.g1", "gone", -1))
        (worker,) = keeper.workers
        assert worker.reason == "its worker is away"
