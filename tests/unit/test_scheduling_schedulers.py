"""What the schedulers answer to events, compared with ==."""

from __future__ import annotations

from round_factories import make_plan

from artifacts.records import Outcome
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Finished,
    Launch,
    Lost,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.short_round import ShortRoundScheduler
from tasks.scheduling.wait_for_all import WaitForAll


def finished(prompt_id: str, index: int) -> Finished:
    return Finished(prompt_id=prompt_id, index=index, num_tokens=7)


def scored(prompt_id: str, index: int) -> Scored:
    return Scored(prompt_id=prompt_id, index=index, outcome=Outcome.OK, reward=1.0)


def infra(prompt_id: str, index: int) -> Scored:
    return Scored(prompt_id=prompt_id, index=index, outcome=Outcome.INFRA, reward=None)


def launches(prompt_id: str, *indices: int) -> list[Decision]:
    return [Launch(prompt_id=prompt_id, index=index) for index in indices]


def answer(scheduler: RoundScheduler, prompt_id: str, *indices: int) -> list[Decision]:
    """The decisions when these responses finish and are scored one after the other."""
    decisions: list[Decision] = []
    for index in indices:
        decisions += scheduler.handle(finished(prompt_id, index))
        decisions += scheduler.handle(scored(prompt_id, index))
    return decisions


def test_a_synchronous_round_launches_everything_at_once_and_closes_after_the_last_group() -> None:
    scheduler = WaitForAll(make_plan())
    assert scheduler.start() == [*launches("p0", 0, 1), *launches("p1", 0, 1)]
    assert answer(scheduler, "p1", 1, 0) == [AcceptGroup(prompt_id="p1", indices=(0, 1))]
    assert answer(scheduler, "p0", 0, 1) == [
        AcceptGroup(prompt_id="p0", indices=(0, 1)),
        CloseRound(),
    ]


def test_a_round_without_prompts_closes_at_once() -> None:
    assert WaitForAll(make_plan(domains=())).start() == [CloseRound()]


def test_a_lost_response_is_launched_again_under_its_index() -> None:
    scheduler = WaitForAll(make_plan())
    scheduler.start()
    assert scheduler.handle(Lost(prompt_id="p0", index=1)) == launches("p0", 1)
    scheduler.handle(finished("p0", 0))
    assert scheduler.handle(Lost(prompt_id="p0", index=0)) == [], (
        "it had come back before its engine died"
    )


def test_a_response_without_verdict_is_replaced_by_a_further_index() -> None:
    scheduler = WaitForAll(make_plan(domains=("a",)))
    scheduler.start()
    assert scheduler.handle(infra("p0", 0)) == launches("p0", 2)
    assert answer(scheduler, "p0", 1, 2) == [
        AcceptGroup(prompt_id="p0", indices=(1, 2)),
        CloseRound(),
    ]


def test_a_prompt_that_cannot_be_scored_is_dropped_after_a_bounded_number_of_replacements() -> None:
    scheduler = WaitForAll(make_plan(domains=("a",), max_replacements=1))
    scheduler.start()
    assert scheduler.handle(infra("p0", 0)) == launches("p0", 2)
    assert scheduler.handle(infra("p0", 2)) == [
        Abort(prompt_id="p0", indices=(1,)),
        Drop(prompt_id="p0"),
        CloseRound(),
    ]


def test_repeated_events_change_nothing() -> None:
    scheduler = WaitForAll(make_plan(domains=("a",)))
    scheduler.start()
    assert answer(scheduler, "p0", 0, 0) == []
    assert scheduler.handle(infra("p0", 0)) == []
    assert answer(scheduler, "p0", 1) == [AcceptGroup(prompt_id="p0", indices=(0, 1)), CloseRound()]
    assert answer(scheduler, "p0", 0, 1) == []


def test_a_short_round_aborts_siblings_and_defers_the_rest_in_launch_order() -> None:
    scheduler = ShortRoundScheduler(
        make_plan("short", domains=("a",) * 3, accept_prompts=1, launch_per_prompt=3)
    )
    assert len(scheduler.start()) == 9
    scheduler.handle(finished("p1", 0))
    assert answer(scheduler, "p1", 2) == []
    assert scheduler.handle(scored("p1", 0)) == [
        AcceptGroup(prompt_id="p1", indices=(0, 2)),
        Abort(prompt_id="p1", indices=(1,)),
        Abort(prompt_id="p0", indices=(0, 1, 2)),
        Abort(prompt_id="p2", indices=(0, 1, 2)),
        Defer(prompt_id="p0"),
        Defer(prompt_id="p2"),
        CloseRound(),
    ]
    assert answer(scheduler, "p0", 0, 1) == []


def test_speculative_responses_make_up_for_missing_verdicts_before_further_ones_are_launched() -> (
    None
):
    scheduler = ShortRoundScheduler(
        make_plan("short", domains=("a", "a"), accept_prompts=1, launch_per_prompt=3)
    )
    scheduler.start()
    assert scheduler.handle(infra("p0", 0)) == []
    assert scheduler.handle(infra("p0", 1)) == launches("p0", 3)


def test_a_quick_domain_cannot_take_the_slots_of_a_slow_one() -> None:
    plan = make_plan(
        "short", domains=("a", "a", "b", "b"), accept_prompts=2, quotas={"a": 1, "b": 1}
    )
    scheduler = ShortRoundScheduler(plan)
    scheduler.start()
    scheduler.handle(finished("p1", 0))
    assert answer(scheduler, "p0", 0, 1) == [
        AcceptGroup(prompt_id="p0", indices=(0, 1)),
        Abort(prompt_id="p1", indices=(1,)),
    ]
    assert scheduler.handle(scored("p1", 0)) == []
    assert answer(scheduler, "p3", 0, 1) == [
        AcceptGroup(prompt_id="p3", indices=(0, 1)),
        Abort(prompt_id="p2", indices=(0, 1)),
        Defer(prompt_id="p1"),
        Defer(prompt_id="p2"),
        CloseRound(),
    ]


def test_a_domain_without_a_slot_is_stopped_at_the_start() -> None:
    plan = make_plan("short", domains=("a", "b"), accept_prompts=1, quotas={"a": 1, "b": 0})
    scheduler = ShortRoundScheduler(plan)
    assert scheduler.start() == [
        *launches("p0", 0, 1),
        *launches("p1", 0, 1),
        Abort(prompt_id="p1", indices=(0, 1)),
    ]
    assert answer(scheduler, "p0", 0, 1)[-2:] == [Defer(prompt_id="p1"), CloseRound()]


def test_a_slot_that_a_domain_cannot_fill_goes_to_another() -> None:
    plan = make_plan(
        "short",
        domains=("a", "b", "b"),
        accept_prompts=2,
        quotas={"a": 1, "b": 1},
        max_replacements=0,
    )
    scheduler = ShortRoundScheduler(plan)
    scheduler.start()
    assert scheduler.handle(infra("p0", 0)) == [
        Abort(prompt_id="p0", indices=(1,)),
        Drop(prompt_id="p0"),
    ]
    assert answer(scheduler, "p1", 0, 1) == [AcceptGroup(prompt_id="p1", indices=(0, 1))]
    assert answer(scheduler, "p2", 0, 1) == [
        AcceptGroup(prompt_id="p2", indices=(0, 1)),
        CloseRound(),
    ]


def test_a_short_round_of_which_nothing_can_be_scored_still_closes() -> None:
    scheduler = ShortRoundScheduler(
        make_plan("short", domains=("a", "a"), accept_prompts=1, max_replacements=0)
    )
    scheduler.start()
    assert scheduler.handle(infra("p0", 0)) == [
        Abort(prompt_id="p0", indices=(1,)),
        Drop(prompt_id="p0"),
    ]
    assert scheduler.handle(infra("p1", 0)) == [
        Abort(prompt_id="p1", indices=(1,)),
        Drop(prompt_id="p1"),
        CloseRound(),
    ]


def test_what_a_round_waits_for_is_one_sentence() -> None:
    scheduler = ShortRoundScheduler(make_plan("short", domains=("a",) * 6, accept_prompts=5))
    scheduler.start()
    scheduler.handle(finished("p0", 0))
    assert (
        scheduler.waiting_for()
        == "5 groups are missing; undecided: p0 (0 of 2 scored, 1 running, 1 unscored), p1 (0 of 2"
        " scored, 2 running, 0 unscored), p2 (0 of 2 scored, 2 running, 0 unscored), p3 (0 of 2"
        " scored, 2 running, 0 unscored) and 2 more"
    )
