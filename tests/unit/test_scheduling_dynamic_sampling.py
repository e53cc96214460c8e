"""Groups whose rewards agree are replaced, in every kind of round, and every prompt stays accounted
for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from round_factories import make_engines, make_plan, plan_round, play

from artifacts.records import Outcome, Response
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Filter,
    Finished,
    Launch,
    PromptRef,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll

BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=2)
DOMAINS = ("add", "letters") * 20


def verdicts(scheduler: RoundScheduler, prompt_id: str, *rewards: float) -> list[Decision]:
    """The decisions when responses 0, 1, ... of a prompt get these rewards."""
    decisions: list[Decision] = []
    for index, reward in enumerate(rewards):
        decisions += scheduler.handle(
            Scored(prompt_id=prompt_id, index=index, outcome=Outcome.OK, reward=reward)
        )
    return decisions


def launches(prompt_id: str, count: int) -> list[Decision]:
    return [Launch(prompt_id=prompt_id, index=index) for index in range(count)]


def test_a_flat_group_of_a_synchronous_round_is_replaced_by_the_next_prompt_of_its_domain() -> None:
    scheduler = WaitForAll(make_plan(domains=("a", "b"), reserve=("a", "b", "b")))
    scheduler.start()
    assert verdicts(scheduler, "p1", 1.0, 1.0) == [Filter(prompt_id="p1"), *launches("r1", 2)]
    assert verdicts(scheduler, "p0", 1.0, 0.0) == [AcceptGroup(prompt_id="p0", indices=(0, 1))]
    assert verdicts(scheduler, "r1", 0.0, 0.0) == [Filter(prompt_id="r1"), *launches("r2", 2)]
    assert verdicts(scheduler, "r2", 0.0, 0.0) == [
        AcceptGroup(prompt_id="r2", indices=(0, 1)),
        CloseRound(),
    ], "nothing is left of b"


def early_scheduler() -> WaitForAll:
    """Two groups of six, of which p1 has five equal verdicts."""
    plan = make_plan(domains=("a", "b"), accept_per_prompt=6, reserve=("b", "a"))
    scheduler = WaitForAll(plan)
    scheduler.start()
    assert verdicts(scheduler, "p1", *[1.0] * 5) == [], "seven of twelve run: no room for six more"
    return scheduler


def test_a_prompt_that_will_probably_be_needed_is_asked_as_soon_as_there_is_room() -> None:
    scheduler = early_scheduler()
    assert verdicts(scheduler, "p0", 0.0) == launches("r0", 6)
    assert verdicts(scheduler, "p0", 0.0, 1.0, 0.0, 0.0, 0.0) == [], "these differ"


def test_what_was_asked_early_is_given_up_when_nothing_can_need_it() -> None:
    scheduler = early_scheduler()
    verdicts(scheduler, "p0", 0.0, 1.0)
    verdicts(scheduler, "r0", 1.0)
    last = Scored(prompt_id="p1", index=5, outcome=Outcome.WRONG, reward=0.0)
    assert scheduler.handle(last) == [
        AcceptGroup(prompt_id="p1", indices=tuple(range(6))),
        Abort(prompt_id="r0", indices=tuple(range(1, 6))),
    ]
    assert verdicts(scheduler, "r0", *[1.0] * 6) == []
    assert verdicts(scheduler, "p0", *[0.0] * 6) == [
        AcceptGroup(prompt_id="p0", indices=tuple(range(6))),
        CloseRound(),
    ], "r0 is no part of the round"


def test_what_was_asked_early_joins_only_in_place_of_another() -> None:
    scheduler = early_scheduler()
    verdicts(scheduler, "p0", 0.0, 1.0)
    assert verdicts(scheduler, "r0", 0.0, *[1.0] * 5) == [], "it is ready, and has no place yet"
    last = Scored(prompt_id="p1", index=5, outcome=Outcome.OK, reward=1.0)
    assert scheduler.handle(last) == [
        Filter(prompt_id="p1"),
        AcceptGroup(prompt_id="r0", indices=tuple(range(6))),
    ]


def test_a_round_that_scores_last_asks_nothing_early() -> None:
    plan = make_plan(domains=("a", "b"), accept_per_prompt=6, reserve=("b", "a"))
    scheduler = WaitForAll(replace(plan, scores_last=True))
    scheduler.start()
    assert verdicts(scheduler, "p1", *[1.0] * 5) == []
    assert verdicts(scheduler, "p0", 0.0) == []


def test_without_a_reserve_flat_groups_are_trained() -> None:
    scheduler = WaitForAll(make_plan(domains=("a",)))
    scheduler.start()
    assert verdicts(scheduler, "p0", 1.0, 1.0) == [
        AcceptGroup(prompt_id="p0", indices=(0, 1)),
        CloseRound(),
    ]


def test_a_filtered_group_takes_no_slot_of_a_short_round_and_is_never_queued() -> None:
    plan = make_plan(
        "short", domains=("a",) * 3, accept_prompts=2, launch_per_prompt=3, reserve=("a",) * 2
    )
    scheduler = ShortRoundScheduler(plan)
    scheduler.start()
    assert verdicts(scheduler, "p1", 0.0, 0.0) == [
        Abort(prompt_id="p1", indices=(2,)),
        Filter(prompt_id="p1"),
        *launches("r0", 3),
    ]
    assert verdicts(scheduler, "r0", 0.0, 1.0) == [
        AcceptGroup(prompt_id="r0", indices=(0, 1)),
        Abort(prompt_id="r0", indices=(2,)),
    ]
    last = verdicts(scheduler, "p0", 0.0, 1.0)
    assert last[0] == AcceptGroup(prompt_id="p0", indices=(0, 1))
    assert last[-2:] == [Defer(prompt_id="p2"), CloseRound()]


def test_a_flat_group_that_came_too_late_for_a_slot_is_filtered_without_replacement() -> None:
    plan = make_plan(
        "short", domains=("a", "a", "b"), accept_prompts=2, quotas={"a": 1, "b": 1}, reserve=("a",)
    )
    scheduler = ShortRoundScheduler(plan)
    scheduler.start()
    verdicts(scheduler, "p0", 1.0)
    verdicts(scheduler, "p1", 1.0)
    scheduler.handle(Finished(prompt_id="p0", index=1, num_tokens=9))
    for prompt_id, reward in (("p1", 0.0), ("p0", 1.0)):
        scheduler.handle(Scored(prompt_id=prompt_id, index=1, outcome=Outcome.OK, reward=reward))
    assert verdicts(scheduler, "p2", 0.0, 1.0) == [
        AcceptGroup(prompt_id="p2", indices=(0, 1)),
        Filter(prompt_id="p0"),
        CloseRound(),
    ]


@pytest.mark.parametrize(
    "scheduling", [SyncConfig(dynamic_sampling=1.5), TailBatchingConfig(dynamic_sampling=1.5)]
)
def test_a_round_reserves_the_prompts_that_come_next(
    scheduling: Policy,
) -> None:
    plan = plan_round(QueueState(), BATCH, scheduling, domains=DOMAINS, seed=0, step=1, num_steps=9)
    plain = plan_round(
        QueueState(),
        BATCH,
        scheduling.model_copy(update={"dynamic_sampling": 0.0}),
        domains=DOMAINS,
        seed=0,
        step=1,
        num_steps=9,
    )
    assert plan is not None
    assert plain is not None
    assert (plan.prompts, plan.quotas, len(plan.reserve)) == (plain.prompts, plain.quotas, 6)
    assert not set(plan.prompts) & set(plan.reserve)


def test_what_a_round_passes_over_is_asked_first_by_the_next() -> None:
    scheduling = SyncConfig(dynamic_sampling=1)
    plan = plan_round(QueueState(), BATCH, scheduling, domains=DOMAINS, seed=0, step=1, num_steps=9)
    assert plan is not None
    names, third = [ref.prompt_id for ref in plan.prompts], plan.reserve[2]
    state = finish_round(
        QueueState(),
        plan,
        RoundEnd(accepted=[*names[1:], third.prompt_id], filtered=[names[0]]),
    )
    assert (state.skipped, state.num_drawn, state.num_filtered) == (plan.reserve[:2], 7, 1)
    state = QueueState.from_json(json.loads(json.dumps(state.to_json())))
    following = plan_round(state, BATCH, scheduling, domains=DOMAINS, seed=0, step=2, num_steps=9)
    assert following is not None
    assert following.prompts == (*plan.reserve[:2], plan.reserve[3], following.prompts[3])
    assert third not in following.candidates


def test_a_long_round_fills_up_from_the_stream_and_a_drain_trains_what_there_is() -> None:
    queue = tuple(PromptRef(prompt_id=f"9/{row}", domain="add") for row in range(4))
    scheduling = TailBatchingConfig(dynamic_sampling=0.5)
    long = plan_round(
        QueueState(queue=queue, num_drawn=10),
        BATCH,
        scheduling,
        domains=DOMAINS,
        seed=0,
        step=3,
        num_steps=9,
    )
    drain = plan_round(
        QueueState(queue=queue, num_drawn=10),
        BATCH,
        scheduling,
        domains=DOMAINS,
        seed=0,
        step=10,
        num_steps=9,
    )
    assert long is not None
    assert drain is not None
    assert (long.prompts, len(long.reserve), drain.prompts, drain.reserve) == (queue, 2, queue, ())
    accepted = [ref.prompt_id for ref in (*queue[1:], long.reserve[0])]
    state = finish_round(
        QueueState(queue=queue, num_drawn=10),
        long,
        RoundEnd(accepted=accepted, filtered=["9/0"]),
    )
    assert (state.queue, state.num_drawn, state.num_trained, state.num_filtered) == ((), 11, 4, 1)


def test_an_interrupted_round_replays_its_replacements_from_what_was_recorded() -> None:
    plan = make_plan(
        "short",
        domains=("a", "b") * 4,
        accept_prompts=6,
        quotas={"a": 3, "b": 3},
        reserve=("b", "a", "a", "b"),
    )
    feed = SimulatedRewardConfig(ok_share=0.8)
    first = run_virtual(play(plan, make_engines(2), SimulatedFeed(feed)))
    assert first.filtered
    scores = {(score.prompt_id, score.index): score for score in first.scores}
    recorded = [
        Response(generated=one, score=scores.get((one.prompt_id, one.index)))
        for one in first.generated[::2]
    ]
    again = run_virtual(play(plan, make_engines(2), SimulatedFeed(feed), recorded=recorded))
    assert len(again.groups) == 6
    assert len({one.response_id for one in again.generated}) == len(again.generated)
    finish_round(QueueState(), plan, again)
