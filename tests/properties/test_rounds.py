"""Invariants 1, 2, 3 and 7 (docs/architecture.md) of the scheduling over simulated runs: random
lengths, failing verdicts, dying engines, responses that are episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_factories import ENGINE, make_engines, make_plan, plan_round, play, simulate_run
from turn_factories import TalkingEngine

from artifacts.records import Fate, Outcome, sampled_versions
from research.ablations.longest_first import LongestFirstConfig
from research.ablations.over_sampling import OverSamplingConfig
from research.spot.simulated_rounds import SimulatedRound
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import Event, Finished, Launch, PromptRef, Scored
from tasks.scheduling.ledger import account_tokens
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.prompt_stream import draw_prompts
from tasks.scheduling.queue_state import Carried, QueueState, RoundEnd, finish_round
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.staleness import Dispatched
from tasks.scheduling.wait_for_all import WaitForAll

few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated run and what goes wrong in it."""

    batch: BatchConfig
    scheduling: Policy
    num_steps: int
    domains: tuple[str, ...]
    lengths: LengthModel
    reward: SimulatedRewardConfig
    losses_s: tuple[float, ...]  # when the engines die; one more engine than that lives on
    is_episodic: bool  # whether responses are episodes
    seed: int


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    batch = BatchConfig(
        prompts_per_step=draw(st.integers(1, 6)), responses_per_prompt=draw(st.integers(2, 4))
    )
    dynamic_sampling = draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
    tail = TailBatchingConfig(
        prompt_overprovision=draw(st.sampled_from([1.0, 1.25, 1.5, 3.0])),
        response_overprovision=draw(st.sampled_from([1.1, 1.5])),
        dynamic_sampling=dynamic_sampling,
        reward_timing=draw(st.sampled_from(["per_response", "per_response", "after_rollout"]))
        if not dynamic_sampling
        else "per_response",
    )
    multilevel = MultilevelBatchingConfig(
        prompt_overprovision=draw(st.sampled_from([1.25, 1.5, 3.0])),
        num_levels=draw(st.integers(2, 4)),
        dynamic_sampling=dynamic_sampling,
    )
    sync = SyncConfig(dynamic_sampling=dynamic_sampling)
    discard = OverSamplingConfig(
        prompt_overprovision=draw(st.sampled_from([1.25, 1.5, 3.0])),
        dynamic_sampling=dynamic_sampling,
    )
    ordered = LongestFirstConfig(
        under_way=draw(st.sampled_from([0.01, 0.3, 1.0])),
        moves_running=draw(st.booleans()),
        dynamic_sampling=dynamic_sampling,
    )
    seed = draw(st.integers(0, 10_000))
    return Scenario(
        batch=batch,
        scheduling=draw(st.sampled_from([tail, multilevel, sync, discard, ordered])),
        num_steps=draw(st.integers(1, 7)),
        domains=tuple(
            draw(st.lists(st.sampled_from(["add", "letters", "rare"]), min_size=18, max_size=25))
        ),
        lengths=LengthModel(
            median_tokens=60,
            sigma=draw(st.floats(0, 1.5)),
            prompt_share=draw(st.floats(0, 1)),
            seed=seed,
        ),
        reward=SimulatedRewardConfig(
            infra_share=draw(st.sampled_from([0.0, 0.0, 0.1, 0.6])),
            ok_share=draw(st.sampled_from([0.5, 0.9, 1.0])),
            seed=seed,
        ),
        losses_s=tuple(draw(st.lists(st.floats(0, 30), max_size=3))),
        is_episodic=draw(st.booleans()),
        seed=seed,
    )


def run(scenario: Scenario) -> list[SimulatedRound]:
    async def simulate() -> list[SimulatedRound]:
        config = ENGINE.model_copy(update={"lengths": scenario.lengths})
        kind = TalkingEngine if scenario.is_episodic else SimulatedEngine
        engines = [kind(f"engine-{place}", config) for place in range(len(scenario.losses_s) + 1)]
        for engine, lost_s in zip(engines, scenario.losses_s, strict=False):
            asyncio.get_running_loop().call_later(lost_s, engine.fail)
        return await simulate_run(
            scenario.batch,
            scenario.scheduling,
            num_steps=scenario.num_steps,
            engines=engines,
            domains=scenario.domains,
            seed=scenario.seed,
            reward=scenario.reward,
        )

    return run_virtual(simulate())


def prompt_ids(refs: Sequence[PromptRef]) -> list[str]:
    return [ref.prompt_id for ref in refs]


@few
@given(scenarios())
def test_every_drawn_prompt_is_trained_once_or_dropped_or_filtered_or_still_to_be_asked(
    scenario: Scenario,
) -> None:
    asked: set[str] = set()
    gone: set[str] = set()
    for one in run(scenario):
        done = [
            *one.result.accepted,
            *one.result.dropped,
            *one.result.filtered,
        ]
        asked |= {*done, *one.result.deferred}
        assert asked >= set(prompt_ids(one.plan.prompts))
        assert len(set(done)) == len(done)
        assert not set(done) & gone
        gone |= set(done)
        queue, skipped = set(prompt_ids(one.state.queue)), set(prompt_ids(one.state.skipped))
        assert gone | queue == asked
        assert not gone & queue
        assert not skipped & asked
        stream = prompt_ids(draw_prompts(scenario.domains, scenario.seed, 0, one.state.num_drawn))
        assert asked | skipped == set(stream)
        counted = one.state.num_trained + one.state.num_dropped + one.state.num_filtered
        assert one.state.num_drawn == counted + len(one.state.queue) + len(one.state.skipped)
    assert one.state.queue == ()


@few
@given(scenarios())
def test_only_groups_whose_rewards_agree_are_filtered_and_none_of_them_is_queued(
    scenario: Scenario,
) -> None:
    for one in run(scenario):
        verdicts: dict[str, list[float]] = {}
        for score in one.result.scores:
            if score.reward is not None:
                verdicts.setdefault(score.prompt_id, []).append(score.reward)
        domain_of = {ref.prompt_id: ref.domain for ref in one.plan.candidates}
        needed = one.plan.accept_per_prompt
        assert all(len(set(verdicts[prompt_id][:needed])) == 1 for prompt_id in one.result.filtered)
        asked = {
            *one.result.deferred,
            *one.result.dropped,
            *one.result.filtered,
            *one.result.accepted,
        }
        left = {ref.domain for ref in one.plan.reserve if ref.prompt_id not in asked}
        for group in one.result.groups:
            rewards = {
                response.score.reward for response in group.responses if response.score is not None
            }
            assert len(rewards) > 1 or group.prompt.domain not in left
        if not one.plan.reserve:
            assert one.result.filtered == ()
        else:
            ready = [
                prompt_id
                for prompt_id in one.result.deferred
                if len(verdicts.get(prompt_id, ())) >= needed
            ]
            assert all(
                len(set(verdicts[prompt_id][:needed])) > 1
                for prompt_id in ready
                if domain_of[prompt_id]
            )


@few
@given(scenarios())
def test_every_step_trains_exactly_its_groups_of_scored_responses_of_the_current_version(
    scenario: Scenario,
) -> None:
    for one in run(scenario):
        plan, groups = one.plan, one.result.groups
        assert len(groups) <= plan.accept_prompts
        assert len(groups) == plan.accept_prompts or one.result.dropped
        if scenario.reward.infra_share == 0:
            assert len(groups) == plan.accept_prompts
            domains = Counter(group.prompt.domain for group in groups)
            assert all(quota.least <= domains[quota.domain] <= quota.most for quota in plan.quotas)
        for group in groups:
            assert (
                len({response.generated.index for response in group.responses})
                == plan.accept_per_prompt
            )
            for response in group.responses:
                assert response.score is not None
                assert response.score.outcome is not Outcome.INFRA
                assert (response.score.prompt_id, response.score.index) == (
                    group.prompt.prompt_id,
                    response.generated.index,
                )
                assert response.generated.finish_reason != "aborted"
        assert {
            span.version for response in one.result.generated for span in sampled_versions(response)
        } <= {plan.step - 1}


@few
@given(scenarios())
def test_every_generated_token_is_in_one_column(scenario: Scenario) -> None:
    for one in run(scenario):
        generated = one.result.generated
        assert len({response.response_id for response in generated}) == len(generated)
        trained = {
            response.generated.response_id
            for group in one.result.groups
            for response in group.responses
        }
        filtered = {
            response.response_id
            for response in generated
            if response.prompt_id in one.result.filtered
        }
        assert not filtered & trained
        ledger = account_tokens(generated, trained=trained, filtered=filtered)
        assert ledger[Fate.FILTERED] == sum(
            response.num_sampled
            for response in generated
            if response.response_id in filtered and response.finish_reason != "aborted"
        )
        assert sum(ledger.values()) == sum(response.num_sampled for response in generated)
        assert ledger[Fate.TRAINED] == sum(
            response.num_sampled for response in generated if response.response_id in trained
        )


@given(
    prompts_per_step=st.sampled_from([4, 8, 20]),
    eta=st.sampled_from([1.25, 1.5, 2.0]),
    num_periods=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_in_steady_state_one_round_in_so_many_is_long(
    prompts_per_step: int, eta: float, num_periods: int, seed: int
) -> None:
    batch = BatchConfig(prompts_per_step=prompts_per_step, responses_per_prompt=2)
    scheduling = TailBatchingConfig(prompt_overprovision=eta)
    period = round(1 / (eta - 1)) + 1
    state, kinds = QueueState(), []
    for step in range(1, period * num_periods + 1):
        plan = plan_round(
            state, batch, scheduling, domains=("a",) * 50, seed=seed, step=step, num_steps=10_000
        )
        assert plan is not None
        names = prompt_ids(plan.prompts)
        accepted, deferred = names[: plan.accept_prompts], names[plan.accept_prompts :]
        state = finish_round(state, plan, RoundEnd(accepted=accepted, deferred=deferred))
        kinds.append(plan.kind)
    assert Counter(kinds) == {"short": num_periods * (period - 1), "long": num_periods}
    assert state.queue == ()


@given(
    unfit=st.sets(st.integers(0, 19), max_size=8),
    speculates=st.booleans(),
    reserve=st.sampled_from([0.0, 0.5]),
    data=st.data(),
)
def test_unfit_rows_are_passed_over_and_counted(
    unfit: set[int], speculates: bool, reserve: float, data: st.DataObject
) -> None:
    """Over epochs of 20 rows; of every round some prompts of the reserve are asked in place of
    others."""
    batch = BatchConfig(prompts_per_step=4, responses_per_prompt=2)
    scheduling = (
        TailBatchingConfig(dynamic_sampling=reserve)
        if speculates
        else SyncConfig(dynamic_sampling=reserve)
    )
    state, asked = QueueState(), set()
    for step in range(1, 12):
        plan = plan_round(
            state,
            batch,
            scheduling,
            domains=("a",) * 20,
            seed=1,
            step=step,
            num_steps=11,
            unfit=unfit,
        )
        assert plan is not None
        reserved = [ref.prompt_id for ref in plan.reserve if data.draw(st.booleans())]
        names = [*prompt_ids(plan.prompts), *reserved]
        filtered, rest = names[: len(reserved)], names[len(reserved) :]
        accepted, deferred = rest[: plan.accept_prompts], rest[plan.accept_prompts :]
        state = finish_round(
            state, plan, RoundEnd(accepted=accepted, deferred=deferred, filtered=filtered)
        )
        asked |= set(names)
        passed_over = [
            row
            for row in prompt_rows(draw_prompts(("a",) * 20, 1, 0, state.num_drawn))
            if row in unfit
        ]
        assert not set(prompt_rows(plan.candidates)) & unfit
        assert state.num_unfit == len(passed_over)
        counted = state.num_trained + state.num_filtered + state.num_unfit
        assert state.num_drawn == counted + len(state.queue) + len(state.skipped)
        assert len(asked) == state.num_trained + state.num_filtered + len(state.queue)


def prompt_rows(refs: Sequence[PromptRef]) -> list[int]:
    return [int(ref.prompt_id.partition("/")[2]) for ref in refs]


@given(
    queue=st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=20),
    counts=st.tuples(*[st.integers(0, 10**9)] * 5),
)
def test_the_queue_survives_json(
    queue: list[tuple[str, str]], counts: tuple[int, int, int, int, int]
) -> None:
    refs = tuple(PromptRef(prompt_id=prompt_id, domain=domain) for prompt_id, domain in queue)
    drawn, trained, dropped, filtered, unfit = counts
    state = QueueState(
        queue=refs[::3],
        skipped=refs[1::3],
        carried=tuple(
            Carried(ref=ref, dispatched=Dispatched(version=place, is_returned=place % 2 == 1))
            for place, ref in enumerate(refs[2::3])
        ),
        num_drawn=drawn,
        num_trained=trained,
        num_dropped=dropped,
        num_filtered=filtered,
        num_unfit=unfit,
    )
    assert QueueState.from_json(state.to_json()) == state


@given(
    st.permutations(
        [(f"{name}", index) for name in ("p0", "p1", "p2", "r0", "r1") for index in range(3)]
    ),
    st.sets(st.integers(0, 14), max_size=3),
    st.sets(st.integers(0, 14)),
)
def test_a_short_round_without_speculation_decides_like_a_synchronous_one(
    order: list[tuple[str, int]], failing: set[int], wrong: set[int]
) -> None:
    plan = make_plan("short", domains=("a", "b", "a"), accept_per_prompt=3, reserve=("b", "a"))
    short, plain = ShortRoundScheduler(plan), WaitForAll(replace(plan, scores_last=True))
    assert short.start() == plain.start()
    asked = {"p0", "p1", "p2"}
    for place, (prompt, index) in enumerate(order):
        reward, outcome = (
            (None, Outcome.INFRA) if place in failing else (float(place not in wrong), Outcome.OK)
        )
        events: list[Event] = [
            Finished(prompt_id=prompt, index=index, num_tokens=1),
            Scored(prompt_id=prompt, index=index, outcome=outcome, reward=reward),
        ]
        if prompt not in asked:  # responses come only from prompts that were launched
            continue
        for event in events:
            decisions = short.handle(event)
            assert decisions == plain.handle(event)
            asked |= {one.prompt_id for one in decisions if isinstance(one, Launch)}


@pytest.mark.parametrize("slow_domain", ["a", "b"])
def test_a_long_round_of_any_domain_mix_ends(slow_domain: str) -> None:
    plan = make_plan("long", domains=(slow_domain,) * 5 + ("c",), accept_per_prompt=3)
    result = run_virtual(play(plan, make_engines(2), SimulatedFeed(SimulatedRewardConfig())))
    assert len(result.groups) == 6


def test_a_period_at_128_replicas_beats_synchronous_steps() -> None:
    """The paper's shape: heavy tail, P0 128, R0 8, both over-provisioned by 1.25; 4 short rounds
    and a long one."""
    engine = SimulatedEngineConfig(lengths=LengthModel(median_tokens=500, sigma=1.0))
    batch = BatchConfig(prompts_per_step=128, responses_per_prompt=8)

    async def rollouts(scheduling: Policy) -> list[SimulatedRound]:
        domains = ("math", "code", "qa") * 1000
        return await simulate_run(
            batch,
            scheduling,
            num_steps=5,
            engines=make_engines(128, engine),
            domains=domains,
            max_response_tokens=16_384,
        )

    plain, tail = run_virtual(rollouts(SyncConfig())), run_virtual(rollouts(TailBatchingConfig()))
    assert [one.plan.kind for one in tail] == ["short"] * 4 + ["long"]
    assert tail[-1].state.num_trained == plain[-1].state.num_trained == 640
    assert tail[-1].state.queue == ()
    plain_s, tail_s = (sum(one.rollout_s for one in rounds) for rounds in (plain, tail))
    print(f"rollouts of five steps: {plain_s:.1f} s with sync, {tail_s:.1f} s with tail batching")
    assert plain_s > 1.4 * tail_s
    longest = [
        max(
            len(response.generated.token_ids)
            for group in one.result.groups
            for response in group.responses
        )
        for one in tail
    ]
    assert max(longest[:4]) * 4 < longest[4]
