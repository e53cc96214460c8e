"""Rounds that leave responses running for the next one, over simulated engines on a virtual
clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import asynchronous_model
import pytest
from elastic_worker_factories import House, SlowEngine
from record_factories import make_generated
from round_factories import ENGINE

from artifacts.attempt_log import TokenLog, read_tokens
from artifacts.records import Generated, Request, Response, Running, Score
from research.spot import simulated_rounds
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    inputs_of,
    play_overlapped,
    turn_of,
)
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=3)
ONE_AHEAD = AsynchronousConfig(async_ratio=1.0)


class CountingEngine(SimulatedEngine):
    """Remembers what it was asked."""

    def __init__(self, name: str, config: SimulatedEngineConfig = ENGINE) -> None:
        super().__init__(name, config)
        self.submitted: list[str] = []
        self.requests: list[Request] = []
        self.aborted: list[str] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.requests += requests
        self.submitted += [request.response_id for request in requests]
        await super().submit(requests)

    async def abort(self, response_ids: Sequence[str]) -> None:
        self.aborted += response_ids
        await super().abort(response_ids)


class CountingFeed(SimulatedFeed):
    """Remembers what it was asked to score."""

    def __init__(self, published: list[str]) -> None:
        super().__init__(SimulatedRewardConfig())
        self._published = published

    async def publish(self, generated: Sequence[Generated]) -> None:
        self._published += [response.response_id for response in generated]
        await super().publish(generated)


class BreakingFeed(SimulatedFeed):
    """Breaks when it is asked for its first verdict."""

    async def scored(self, wait_s: float) -> list[Score]:
        await super().scored(wait_s)
        raise RuntimeError("the reward is broken")


def make_run(
    engines: Sequence[SimulatedEngine],
    policy: Policy = ONE_AHEAD,
    num_steps: int = 6,
    train_s: float = 2.0,
    leaves_running: bool = True,
    published: list[str] | None = None,
    at_update: Running = Running.INTERRUPT,
) -> OverlappedRun:
    told = [] if published is None else published
    return OverlappedRun(
        policy=policy,
        batch=BATCH,
        num_steps=num_steps,
        domains=("a", "b") * 40,
        engines=engines,
        learner=SimulatedLearner(engines, train_s, at_update),
        feed=lambda: CountingFeed(told),
        max_response_tokens=2000,
        leaves_running=leaves_running,
    )


async def play_all(run: OverlappedRun) -> list[SimulatedRound]:
    return [played async for played in play_overlapped(run)]


def generated_in(rounds: Sequence[SimulatedRound]) -> list[Generated]:
    return [response for played in rounds for response in played.result.generated]


def test_what_a_round_leaves_running_is_asked_once_and_counted_once() -> None:
    async def play() -> None:
        engines = [CountingEngine("engine-0"), CountingEngine("engine-1")]
        rounds = await play_all(make_run(engines))
        assert any(played.result.in_flight for played in rounds)
        submitted = Counter(name for engine in engines for name in engine.submitted)
        assert set(submitted.values()) == {1}
        names = [response.response_id for response in generated_in(rounds)]
        assert Counter(names) == submitted
        assert all(response.finish_reason != "aborted" for response in generated_in(rounds))
        assert [len(played.result.groups) for played in rounds] == [4] * 6
        assert (rounds[-1].state.carried, rounds[-1].result.in_flight) == ((), ())

    run_virtual(play())


def test_with_more_responses_than_are_trained_each_is_still_asked_once() -> None:
    """What is left of a complete group is carried without its surplus."""

    async def play() -> None:
        engines = [CountingEngine("engine-0"), CountingEngine("engine-1")]
        wide = AsynchronousConfig(async_ratio=1.5, response_overprovision=2)
        rounds = await play_all(make_run(engines, wide, num_steps=8))
        submitted = Counter(name for engine in engines for name in engine.submitted)
        assert set(submitted.values()) == {1}
        assert len(submitted) == 8 * 4 * 6
        assert Counter(response.response_id for response in generated_in(rounds)) == submitted
        assert any(carry.indices for played in rounds for carry in played.result.carried)
        for played in rounds:
            assert [len(group.responses) for group in played.result.groups] == [3] * 4

    run_virtual(play())


PAUSING = AsynchronousConfig(async_ratio=1.0, at_update="pause")


@pytest.mark.parametrize(("policy", "leaves_running"), [(ONE_AHEAD, False), (PAUSING, True)])
def test_what_may_not_run_on_is_stopped_and_gone_on_with(
    policy: AsynchronousConfig, leaves_running: bool
) -> None:
    """No token is generated twice, and each is counted once."""

    async def play() -> None:
        engine = CountingEngine("engine-0")
        rounds = await play_all(make_run([engine], policy, leaves_running=leaves_running))
        assert not any(played.result.in_flight for played in rounds)
        stopped = [
            response.generated
            for played in rounds
            for response in played.result.carried_responses
            if response.generated.finish_reason == "aborted"
        ]
        begun = {response.response_id for response in stopped}
        assert begun <= set(engine.aborted)
        went_on = [request for request in engine.requests if request.kept_tokens]
        assert {request.response_id for request in went_on} == begun
        generated = generated_in(rounds)
        num_tokens = sum(len(response.token_ids) for response in generated)
        # a response that is stopped within a decode step loses the token that it was at
        num_lost = (await engine.stats()).tokens_generated - num_tokens
        assert 0 <= num_lost <= len(stopped)
        assert max(Counter(response.response_id for response in generated).values()) <= 2
        assert all(
            response.finish_reason != "aborted" or not response.token_ids for response in generated
        )
        assert [len(played.result.groups) for played in rounds] == [4] * 6

    run_virtual(play())


def test_what_is_stopped_begins_anew_where_no_response_is_of_two_versions() -> None:
    async def play() -> None:
        engine, drains = CountingEngine("engine-0"), AsynchronousConfig(at_update="drain")
        run = make_run([engine], drains, leaves_running=False, at_update=Running.DRAIN)
        rounds = await play_all(run)
        assert engine.aborted
        assert not any(request.kept_tokens for request in engine.requests)
        assert all(len(response.versions) <= 1 for response in generated_in(rounds))

    run_virtual(play())


def test_a_round_that_pauses_is_of_one_version_and_goes_on_with_those_before() -> None:
    async def play() -> None:
        rounds = await play_all(make_run([CountingEngine("engine-0")], PAUSING))
        mixed = 0
        for played in rounds:
            newest = played.plan.step - 1
            assert not played.plan.upcoming, "no newer weights come while it is played"
            for response in played.result.generated:
                versions = [span.version for span in response.versions]
                assert set(versions) <= set(played.plan.versions)
                mixed += len(versions) > 1 and versions[-1] == newest
        assert mixed

    run_virtual(play())


def test_a_carried_response_keeps_its_verdict() -> None:
    async def play() -> None:
        published: list[str] = []
        rounds = await play_all(make_run([CountingEngine("engine-0")], published=published))
        judged = [
            response.generated.response_id
            for played in rounds
            for response in played.result.carried_responses
            if response.score is not None
        ]
        assert judged
        assert {Counter(published)[name] for name in judged} == {1}
        scored = Counter(
            (score.prompt_id, score.index) for played in rounds for score in played.result.scores
        )
        assert set(scored.values()) == {1}

    run_virtual(play())


def test_a_response_says_which_versions_sampled_it() -> None:
    async def play() -> None:
        rounds = await play_all(make_run([CountingEngine("engine-0")], train_s=0.5))
        mixed = 0
        for played in rounds:
            allowed = range(max(0, played.plan.step - 2), played.plan.step)
            for response in played.result.generated:
                versions = [span.version for span in response.versions]
                assert sum(span.num_tokens for span in response.versions) == len(response.token_ids)
                assert versions == sorted(set(versions))
                assert set(versions) <= set(allowed)
                mixed += len(versions) > 1
        assert mixed

    run_virtual(play())


@pytest.mark.parametrize("at_update", [Running.DRAIN, Running.KEEP])
def test_engines_that_finish_what_they_run_give_no_response_of_two_versions(
    at_update: Running,
) -> None:
    """They begin nothing meanwhile; those that keep it do not wait."""

    async def play() -> None:
        engines = [CountingEngine("engine-0"), CountingEngine("engine-1")]
        run = make_run(engines, train_s=0.5, at_update=at_update)
        rounds = await play_all(run)
        assert [len(played.result.groups) for played in rounds] == [4] * 6
        spans = [len(response.versions) for response in generated_in(rounds)]
        assert (max(spans) > 1) == (at_update is Running.KEEP)
        assert (run.learner.drained_s > 0) == (at_update is Running.DRAIN)
        submitted = Counter(name for engine in engines for name in engine.submitted)
        assert set(submitted.values()) == {1}

    run_virtual(play())


def test_an_engine_that_dies_with_what_was_left_on_it_is_got_over() -> None:
    async def play() -> None:
        engines = [CountingEngine("engine-0"), CountingEngine("engine-1")]
        run = make_run(engines)
        rounds, dead = [], ""
        async for played in play_overlapped(run):
            rounds.append(played)
            if played.result.in_flight and not dead:
                dead = played.result.in_flight[0].engine
                next(engine for engine in engines if engine.name == dead).fail()
        assert dead
        assert [len(played.result.groups) for played in rounds] == [4] * 6
        trained = Counter(
            group.prompt.prompt_id for played in rounds for group in played.result.groups
        )
        assert set(trained.values()) == {1}

    run_virtual(play())


def test_what_an_elastic_worker_has_not_heard_of_yet_is_asked_again_by_the_next_round() -> None:
    async def play() -> None:
        engines: list[SimulatedEngine] = [CountingEngine("engine-0")]
        house = House()
        run = replace(
            make_run(engines, train_s=0.5), engines=(engines[0],), elastic_workers=house.open
        )
        elastic_worker = SlowEngine("elastic-worker-0.g1")
        engines.append(elastic_worker)
        house.join(elastic_worker, max_running=1)
        rounds = await play_all(run)
        assert [len(played.result.groups) for played in rounds] == [4] * 6
        trained = Counter(name for played in rounds for name in played.result.accepted)
        assert set(trained.values()) == {1}

    run_virtual(play())


async def second_round(run: OverlappedRun) -> tuple[RoundInputs, RoundResult]:
    """The inputs of the round after the first, and what that left."""
    rounds = play_overlapped(run)
    first = await anext(rounds)
    plan = run.policy.plan_round(turn_of(run, first.state, 2))
    assert plan is not None
    given = replace(
        inputs_of(run, plan),
        recorded=first.result.carried_responses,
        adopted=first.result.in_flight,
    )
    return given, first.result


def test_what_a_round_was_told_of_what_it_left_the_next_one_goes_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its engine is lost while it runs for the next round."""
    log = TokenLog(tmp_path)

    async def begun() -> Mapping[str, Generated]:
        return read_tokens(tmp_path, lambda attempt: True)

    def telling(run: OverlappedRun, plan: RoundPlan) -> RoundInputs:
        return replace(
            inputs_of(run, plan),
            report_tokens=8,
            on_new_tokens=log.write,
            begun=begun,
        )

    async def play() -> None:
        config = ENGINE.model_copy(update={"report_tokens": 8})
        engines = [CountingEngine(f"engine-{place}", config) for place in range(2)]
        run = make_run(engines, train_s=1000.0)
        monkeypatch.setattr(simulated_rounds, "inputs_of", telling)
        inputs, first = await second_round(run)
        begun = read_tokens(tmp_path, lambda attempt: True)
        left = [each for each in first.in_flight if each.response_id in begun]
        lost, other = sorted(engines, key=lambda engine: engine.name != left[0].engine)
        inputs = replace(telling(run, inputs.plan), recorded=inputs.recorded, adopted=left)
        lost.fail()
        result = await drive_round(inputs)
        again = {request.response_id: request for request in other.requests}
        gone = [each.response_id for each in left if each.engine == lost.name]
        assert gone
        for name in gone:
            assert again[name].kept_tokens == begun[name].token_ids
        assert len(result.groups) == BATCH.prompts_per_step

    run_virtual(play())


def test_a_round_that_fails_leaves_nothing_running() -> None:
    async def play() -> None:
        engine = CountingEngine("engine-0")
        run = make_run([engine], train_s=1000.0)
        inputs, first = await second_round(run)
        assert first.in_flight
        feed = BreakingFeed(SimulatedRewardConfig())
        with pytest.raises(RuntimeError, match="the reward is broken"):
            await drive_round(replace(inputs, feed=feed))
        assert (await engine.stats()).progress == {}
        assert await engine.collect(0.0) == []

    run_virtual(play())


def test_what_nobody_asks_for_any_more_is_stopped() -> None:
    """A kept record that came after all stands in for what runs."""

    async def play() -> None:
        engine = CountingEngine("engine-0")
        run = make_run([engine], train_s=1000.0)
        inputs, first = await second_round(run)
        left = first.in_flight[0]
        wanted = replace(inputs.request(left.prompt_id, left.index), attempt=9)
        record = make_generated(
            prompt_id=wanted.prompt_id,
            index=wanted.index,
            token_ids=(1,),
            logprobs=(0.0,),
            versions=(),
            engine="engine-9",
        )
        recorded = [*inputs.recorded, Response(generated=record, score=None)]
        run.learner.version = 1
        result = await drive_round(replace(inputs, recorded=recorded))
        assert left.response_id in engine.aborted
        assert len(result.groups) == BATCH.prompts_per_step

    run_virtual(play())


def test_the_wait_for_newer_weights_has_the_deadline_of_their_training() -> None:
    async def play() -> None:
        half = AsynchronousConfig(async_ratio=0.5)
        run = make_run([CountingEngine("engine-0")], half, train_s=5000.0, num_steps=3)
        inputs, _ = await second_round(run)
        quick, began_s = replace(inputs, deadline_s=100.0), asyncio.get_running_loop().time()
        result = await drive_round(quick)
        assert len(result.groups) == BATCH.prompts_per_step
        ended_s = asyncio.get_running_loop().time()
        assert ended_s > 5000.0
        assert 4000.0 < result.awaited_weights_s < ended_s - began_s

    run_virtual(play())


def test_without_a_ratio_a_run_gives_the_records_of_the_synchronous_one() -> None:
    async def play(policy: Policy) -> list[SimulatedRound]:
        engines = [SimulatedEngine(f"engine-{place}", ENGINE) for place in range(2)]
        return await play_all(make_run(engines, policy))

    plain = run_virtual(play(SyncConfig()))
    without = run_virtual(play(AsynchronousConfig(async_ratio=0)))
    assert [played.result for played in without] == [played.result for played in plain]
    assert [played.state for played in without] == [played.state for played in plain]
    assert [played.plan.prompts for played in without] == [played.plan.prompts for played in plain]


def test_without_a_ratio_more_responses_are_those_of_short_rounds_that_defer_nothing() -> None:
    async def play(policy: Policy) -> list[SimulatedRound]:
        engines = [SimulatedEngine(f"engine-{place}", ENGINE) for place in range(2)]
        return await play_all(make_run(engines, policy))

    short = TailBatchingConfig(prompt_overprovision=1, response_overprovision=1.5)
    plain = run_virtual(play(short))
    found = AsynchronousConfig(async_ratio=0, response_overprovision=1.5)
    without = run_virtual(play(found))
    assert [played.result for played in without] == [played.result for played in plain]
    assert [played.state for played in without] == [played.state for played in plain]


@cache
def synchronous_s() -> float:
    """Seconds of plain steps in the model of the test below."""
    return asynchronous_model.play(SyncConfig(), 100, long_share=0.0).seconds


@pytest.mark.parametrize(("ratio", "speedup"), [(0.5, 1.56), (1.0, 1.85), (2.0, 2.52)])
def test_the_gain_is_that_of_the_queueing_model(ratio: float, speedup: float) -> None:
    """Figures of a model with nothing but slots, a learner and the bound: 16 slots, 4 s a step,
    exponential lengths of 2 s on average, 8 groups of 4."""
    found = asynchronous_model.play(AsynchronousConfig(async_ratio=ratio), 100, long_share=0.0)
    assert synchronous_s() / found.seconds == pytest.approx(speedup, rel=0.05)
    assert found.lag_mean == pytest.approx(ratio, rel=0.05)
    assert found.lag_max == int(ratio + 0.5)


def test_a_larger_bound_gains_where_lengths_have_a_heavy_tail_and_chooses_no_lengths() -> None:
    """The mean lag stays; more responses than are trained gain more, and choose the short ones."""
    patient = AsynchronousConfig(async_ratio=1.0, extra_lag=2)
    wide = AsynchronousConfig(async_ratio=1.0, response_overprovision=1.5)
    plain, patiently, widely = (
        asynchronous_model.play(policy, 60, long_share=0.05)
        for policy in (ONE_AHEAD, patient, wide)
    )
    assert patiently.groups_per_s > 1.25 * plain.groups_per_s
    assert widely.groups_per_s > 2 * patiently.groups_per_s
    assert (plain.lag_max, patiently.lag_max, widely.lag_max) == (1, 3, 1)
    assert patiently.lag_mean == pytest.approx(1, rel=0.1)
    assert patiently.length_share == pytest.approx(plain.length_share, rel=0.05)
    assert patiently.untrained_share == 0
    assert widely.length_share < 0.5 * plain.length_share
    assert widely.untrained_share > 0.3


def test_prompts_of_a_round_know_those_that_it_carries() -> None:
    async def play() -> None:
        run = make_run([CountingEngine("engine-0")], train_s=1000.0)
        inputs, first = await second_round(run)
        assert inputs.plan.num_carried == len(first.carried) > 0
        carried = [ref.prompt_id for ref in inputs.plan.prompts[: inputs.plan.num_carried]]
        assert carried == [carry.prompt_id for carry in first.carried]
        assert set(carried) <= set(inputs.prompts)

    run_virtual(play())
