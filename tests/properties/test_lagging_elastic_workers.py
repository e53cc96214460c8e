"""Elastic workers that hold older weights than the run's own engines, because their pulls take
long: no token of theirs is ever too old, no group is trained twice or never, and no round hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from elastic_worker_factories import House, WatchedEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.records import Running, WeightsRef
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    blank_weights,
    play_overlapped,
)
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig

BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=3)
HUNG_S = 5_000.0  # far longer than any of these runs takes


class Puller:
    """An elastic worker that has a version only so long after it was published, as its link has
    it."""

    def __init__(self, name: str, house: House, lag_s: float) -> None:
        self.engine = WatchedEngine(name)
        self._house, self._lag_s = house, lag_s
        self._newest = 0
        self._changed = asyncio.Event()
        self._following = asyncio.create_task(self._follow())
        house.join(self.engine)

    def publish(self, version: int) -> None:
        self._newest = version
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            weights = blank_weights(self._newest)
            await asyncio.sleep(self._lag_s)
            await self.engine.load_weights(weights, (), Running.INTERRUPT)
            self._house.join(self.engine)


async def play_lagging(
    policy: AsynchronousConfig, num_own: int, lags_s: Sequence[float], leaves_running: bool
) -> tuple[list[SimulatedRound], House]:
    own = [WatchedEngine(f"engine-{place}") for place in range(num_own)]
    house = House()
    pullers = [
        Puller(f"elastic_worker.g{place}", house, lag_s) for place, lag_s in enumerate(lags_s)
    ]

    def weights(version: int) -> WeightsRef:
        for puller in pullers:
            puller.publish(version)
        return blank_weights(version)

    run = OverlappedRun(
        policy=policy,
        batch=BATCH,
        num_steps=6,
        domains=("a", "b") * 40,
        engines=own,
        learner=SimulatedLearner(own, train_s=1.5, weights=weights),
        feed=lambda: SimulatedFeed(SimulatedRewardConfig()),
        max_response_tokens=2000,
        leaves_running=leaves_running,
        elastic_workers=house.open,
        balancing=BalancingConfig(interval_s=0.5, threshold=0.0, keep_running=0),
    )
    async with asyncio.timeout(HUNG_S):
        return [played async for played in play_overlapped(run)], house


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.lists(st.floats(0, 30), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(["interrupt", "pause"]),
)
def test_an_elastic_worker_that_lags_generates_nothing_that_is_too_old(
    ratio: float,
    extra_lag: int,
    num_own: int,
    lags_s: list[float],
    leaves_running: bool,
    at_update: Literal["interrupt", "pause"],
) -> None:
    policy = AsynchronousConfig(async_ratio=ratio, extra_lag=extra_lag, at_update=at_update)
    rounds, house = run_virtual(play_lagging(policy, num_own, lags_s, leaves_running))
    trained = Counter(name for played in rounds for name in played.result.accepted)
    assert len(trained) == 6 * BATCH.prompts_per_step
    assert set(trained.values()) == {1}
    assert house.given_up == {}
    for played in rounds:
        assert played.result.stale_tokens == 0
        admission = played.plan.admission
        assert admission is not None
        allowed = admission.versions(played.plan.step)
        for group in played.result.groups:
            for response in group.responses:
                assert {span.version for span in response.generated.versions} <= set(allowed)


def test_elastic_workers_alone_that_lag_for_long_are_waited_for() -> None:
    """Every publication reaches them half a minute late, and there is nobody else."""
    policy = AsynchronousConfig(async_ratio=1.0)
    rounds, _ = run_virtual(play_lagging(policy, 0, [30.0, 45.0], leaves_running=True))
    assert sum(len(played.result.accepted) for played in rounds) == 6 * BATCH.prompts_per_step
    assert sum(played.result.awaited_weights_s for played in rounds) > 30.0


def test_an_elastic_worker_that_lags_goes_on_with_groups_of_its_own_weights() -> None:
    """It is not retired: it finishes what it has, and takes what is old enough for it."""

    policy = AsynchronousConfig(async_ratio=2.0)
    rounds, _ = run_virtual(play_lagging(policy, 1, [2.0], leaves_running=True))
    by_elastic_worker = [
        response.generated
        for played in rounds
        for group in played.result.groups
        for response in group.responses
        if response.generated.engine == "elastic_worker.g0"
    ]
    assert len({span.version for each in by_elastic_worker for span in each.versions}) > 1
