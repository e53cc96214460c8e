"""The seeding window in a round: when it closes, and that nothing is lost by it."""

from __future__ import annotations

import asyncio

import pytest
from elastic_worker_factories import Door, WatchedEngine, joined
from round_factories import make_plan, play
from test_elastic_workers import NUM_RESPONSES, assert_undisturbed

from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.elastic_engines import EngineGone
from tasks.scheduling.seeding import SeedingWindow
from tasks.scheduling.stream_training import (
    DeviceGroup,
    Reading,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)

SYNC = make_plan(domains=("a",) * 6, accept_per_prompt=4)
GROUPS = [
    DeviceGroup(engines=(f"engine-{place}",), learners=(f"learner-{place}",)) for place in (0, 1)
]
ALONE = StreamTrainer(StreamTrainerConfig(), (), 0)


class Freed(list[ScaleDown]):
    """Decisions with the moment at which the first was carried out."""

    first_s: float | None = None

    def append(self, decision: ScaleDown) -> None:
        if self.first_s is None:
            self.first_s = asyncio.get_running_loop().time()
        super().append(decision)


def played(window_s: float | None, door: Door | None) -> tuple[Freed, WatchedEngine]:
    """A round of two own engines, whose responses are what they would have been anyway."""
    freed, elastic_worker = Freed(), WatchedEngine("elastic-worker-0.g1")

    async def work() -> None:
        own = [WatchedEngine("engine-0"), WatchedEngine("engine-1")]
        if door is not None:
            door.tell(joined(elastic_worker))
        window = SeedingWindow(window_s, GROUPS, ALONE)
        result = await play(SYNC, own, trainer=window, freed=freed, elastic_workers=door)
        assert_undisturbed(result)

    run_virtual(work())
    return freed, elastic_worker


def test_own_engines_stop_when_the_time_is_up_and_the_elastic_worker_goes_on() -> None:
    freed, elastic_worker = played(2.0, Door())
    assert [decision.learners for decision in freed] == [("learner-0",), ("learner-1",)]
    assert freed.first_s == pytest.approx(2.0, abs=0.1)
    assert any(request.kept_tokens for request in elastic_worker.submitted)


def test_without_an_elastic_worker_the_window_stays_open() -> None:
    assert played(2.0, None)[0] == []
    assert played(None, None)[0] == []


def test_a_window_without_a_length_closes_when_own_work_is_done() -> None:
    """Unless that is the end of the round anyway."""
    freed, _ = played(None, Door())
    assert freed.first_s is None or freed.first_s > 2.0


def test_when_every_elastic_worker_goes_the_own_engines_take_up_the_rest() -> None:
    async def work() -> None:
        own = [WatchedEngine("engine-0"), WatchedEngine("engine-1")]
        elastic_worker, door, freed = WatchedEngine("elastic-worker-0.g1"), Door(), Freed()
        door.tell(joined(elastic_worker))
        asyncio.get_running_loop().call_at(3.0, elastic_worker.fail)
        door.tell_at(3.0, EngineGone(name=elastic_worker.name, reason="taken away"))
        window = SeedingWindow(1.0, GROUPS, ALONE)
        result = await play(SYNC, own, trainer=window, freed=freed, elastic_workers=door)
        assert_undisturbed(result)
        assert len(freed) == 2
        assert len(result.generated) == NUM_RESPONSES

    run_virtual(work())


def reading(elapsed_s: float, num_running: int, num_elastic_workers: int = 1) -> Reading:
    return Reading(
        num_accepted=0,
        elapsed_s=elapsed_s,
        num_running=num_running,
        num_elastic_workers=num_elastic_workers,
        capacity_tokens={
            "engine-0": 100,
            "engine-1": 100,
            "engine-2": 100,
            "elastic-worker-0.g1": 100,
        },
        running=(),
    )


@pytest.mark.parametrize(
    ("window_s", "elapsed_s", "num_running", "is_early"),
    [(5.0, 5.0, 3, False), (5.0, 4.0, 0, True), (None, 4.0, 0, True)],
)
def test_a_window_knows_when_and_why_it_closed(
    window_s: float | None, elapsed_s: float, num_running: int, is_early: bool
) -> None:
    window = SeedingWindow(window_s, GROUPS, ALONE)
    assert window.handle(reading(elapsed_s, num_running, num_elastic_workers=0)) == []
    assert window.closed_s is None, "nobody else is there"
    window.handle(reading(elapsed_s, num_running))
    assert (window.closed_s, window.is_early) == (elapsed_s, is_early)
    assert not window.is_due(reading(9.0, 0)), "once a round"


def test_an_engine_whose_device_trains_nothing_goes_on() -> None:
    apart = DeviceGroup(engines=("engine-2",), learners=())
    freed = SeedingWindow(1.0, [*GROUPS, apart], ALONE).handle(reading(2.0, 3))
    assert [decision.engines for decision in freed] == [("engine-0",), ("engine-1",)]
