"""Whatever engines come and go, and whatever the policy: every round ends, brings home every
response once, and no token of it is another than it would have been without them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_worker_factories import Door, House, WatchedEngine, undisturbed_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_factories import make_plan, play

from artifacts.records import Fate, Generated, Running, WeightsRef
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    play_overlapped,
)
from tasks.engines.base import Attestation
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.figures import ledger_of
from tasks.rounds.records import RoundResult
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.stream_training import DeviceGroup, StreamTrainer, StreamTrainerConfig

few = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
PLANS = (
    make_plan(domains=("a",) * 6, accept_per_prompt=4),
    make_plan(
        "short", domains=("a",) * 8, accept_prompts=6, accept_per_prompt=4, launch_per_prompt=5
    ),
    make_plan("long", domains=("a",) * 4, accept_per_prompt=4),
)
BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=3)
LAST_S = 40.0  # from here on there is an engine that stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An engine comes or goes."""

    at_s: float
    kind: str  # "join", or how an engine ends: "leave", "gone", "die", "die unheard of"
    place: int  # which engine ends
    max_running: int | None  # of one that joins


changes = st.lists(
    st.builds(
        Change,
        at_s=st.one_of(st.just(1.0), st.floats(0, 12)),
        kind=st.sampled_from(["join", "join", "leave", "gone", "die", "die unheard of"]),
        place=st.integers(0, 5),
        max_running=st.sampled_from([None, 1, 3, 8]),
    ),
    max_size=12,
)


balancings = st.sampled_from(
    [
        BalancingConfig(),
        BalancingConfig(interval_s=0.3, threshold=0.0, keep_running=0),
        BalancingConfig(interval_s=1.0, max_running=3),
        BalancingConfig(enabled=False),
    ]
)


class PresentElasticWorker(WatchedEngine):
    """Tells the house of every version that it has loaded."""

    def __init__(self, name: str, version: int, house: House, max_running: int | None) -> None:
        super().__init__(name, version=version)
        self._house, self._max_running = house, max_running

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        attested = await super().load_weights(weights, probes, running)
        if self._house.has(self.name):
            self._house.join(self, self._max_running)
        return attested


class World:
    """Engines that come and go as the changes have it."""

    def __init__(self, num_own: int, changes_: list[Change], version: Callable[[], int]) -> None:
        """version: of the weights that an elastic worker has when it joins."""
        self.house = House()
        self.engines = [WatchedEngine(f"engine-{place}") for place in range(num_own)]
        self.own = tuple(self.engines)
        self._version = version
        for change in changes_:
            asyncio.get_running_loop().call_at(change.at_s, self._happen, change)
        asyncio.get_running_loop().call_at(LAST_S, self._join, 4)

    def _happen(self, change: Change) -> None:
        if change.kind == "join":
            self._join(change.max_running)
        elif self.engines:
            self._end(self.engines[change.place % len(self.engines)], change.kind)

    def _join(self, max_running: int | None) -> None:
        name = f"elastic_worker.g{len(self.engines)}"
        elastic_worker = PresentElasticWorker(name, self._version(), self.house, max_running)
        self.engines.append(elastic_worker)
        self.house.join(elastic_worker, max_running)

    def _end(self, engine: WatchedEngine, kind: str) -> None:
        if kind.startswith("die"):
            engine.fail()
        if kind == "leave":
            self.house.leave(engine.name)
        elif kind != "die unheard of":
            self.house.lose(engine.name)


def assert_whole(result: RoundResult, plan: RoundPlan, versions: range) -> None:
    assert len(result.groups) == plan.accept_prompts
    assert all(len(group.responses) == plan.accept_per_prompt for group in result.groups)
    names = [response.response_id for response in result.generated]
    assert len(set(names)) == len(names)
    for response in (*result.generated, *result.migrated):
        assert_undisturbed(response)
        assert {span.version for span in response.versions} <= set(versions)
    ledger = ledger_of(result, is_evaluation=False)
    told = sum(response.num_sampled for response in result.generated)
    assert sum(ledger.values()) == told + result.stale_tokens
    trained = [response.generated for group in result.groups for response in group.responses]
    home = {response.response_id for response in result.generated}
    assert {response.response_id for response in trained} <= home
    assert ledger[Fate.TRAINED] == sum(response.num_sampled for response in trained)


def assert_undisturbed(response: Generated) -> None:
    """Its tokens are those that it would have had anyway, each with a log-probability and a
    version."""
    whole = undisturbed_tokens(response.prompt_id, response.index)
    assert response.token_ids == whole[: len(response.token_ids)]
    assert len(response.logprobs) == len(response.token_ids)
    assert sum(span.num_tokens for span in response.versions) == len(response.token_ids)
    if response.finish_reason != "aborted":
        assert response.token_ids == whole


@few
@given(st.sampled_from(PLANS), st.integers(0, 3), changes, st.booleans(), balancings)
def test_every_round_ends_and_brings_home_what_it_would_have(
    plan: RoundPlan,
    num_own: int,
    changes_: list[Change],
    is_streamed: bool,
    balancing: BalancingConfig,
) -> None:
    async def work() -> RoundResult:
        world = World(num_own, changes_, version=lambda: 0)
        pairs = [
            DeviceGroup(engines=(engine.name,), learners=(f"learner-{place}",))
            for place, engine in enumerate(world.own)
        ]
        trainer = StreamTrainer(
            StreamTrainerConfig(enabled=is_streamed, max_freed_share=1, last_milestone=0.9),
            pairs,
            plan.accept_prompts,
        )
        door = world.house.open()
        return await play(
            plan, world.own, trainer=trainer, elastic_workers=door, balancing=balancing
        )

    assert_whole(run_virtual(work()), plan, range(1))


@few
@given(
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([1.0, 1.5]),
    st.integers(0, 2),
    changes,
    st.booleans(),
    balancings,
)
def test_every_asynchronous_run_ends_and_trains_every_group_once(
    ratio: float,
    wide: float,
    num_own: int,
    changes_: list[Change],
    leaves_running: bool,
    balancing: BalancingConfig,
) -> None:
    async def work() -> list[SimulatedRound]:
        world = World(num_own, changes_, version=lambda: learner.version)
        learner = SimulatedLearner(world.engines, train_s=1.5)
        run = OverlappedRun(
            policy=AsynchronousConfig(async_ratio=ratio, response_overprovision=wide),
            batch=BATCH,
            num_steps=5,
            domains=("a", "b") * 40,
            engines=world.own,
            learner=learner,
            feed=lambda: SimulatedFeed(SimulatedRewardConfig()),
            max_response_tokens=2000,
            leaves_running=leaves_running,
            elastic_workers=world.house.open,
            balancing=balancing,
        )
        return [played async for played in play_overlapped(run)]

    rounds = run_virtual(work())
    trained = Counter(name for played in rounds for name in played.result.accepted)
    assert set(trained.values()) == {1}
    for played in rounds:
        admission = played.plan.admission
        step = played.plan.step
        versions = admission.versions(step) if admission else range(step - 1, step)
        assert_whole(played.result, played.plan, versions)


@few
@given(st.sampled_from(PLANS[:2]), st.integers(0, 10_000))
def test_every_engine_may_be_gone_at_once(plan: RoundPlan, gone_ms: int) -> None:
    async def work() -> RoundResult:
        at_s = gone_ms / 1000
        news = [
            Change(at_s=0.0, kind="join", place=0, max_running=3),
            *(Change(at_s=at_s, kind="gone", place=place, max_running=None) for place in range(3)),
        ]
        world = World(2, news, version=lambda: 0)
        return await play(plan, world.own, elastic_workers=world.house.open())

    assert_whole(run_virtual(work()), plan, range(1))


@few
@given(st.sampled_from(PLANS), st.integers(1, 3))
def test_a_round_that_nobody_joins_is_the_round_that_nobody_may_join(
    plan: RoundPlan, num_own: int
) -> None:
    async def work(door: Door | None) -> RoundResult:
        engines = [WatchedEngine(f"engine-{place}") for place in range(num_own)]
        return await play(plan, engines, elastic_workers=door)

    async def empty() -> RoundResult:
        return await work(Door())

    assert run_virtual(work(None)) == run_virtual(empty())
