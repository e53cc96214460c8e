"""An asynchronous round gives no group up before its step could train."""

from __future__ import annotations

import pytest

from artifacts.records import Outcome
from tasks.scheduling.asynchronous_round import AtDeadline
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    AcceptGroup,
    Carry,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Finished,
    OverlappedScheduler,
    PromptRef,
    Published,
    Scored,
)
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import Carried, QueueState
from tasks.scheduling.staleness import Dispatched

OLD, MIDDLE, NEW = "0/0", "0/1", "0/2"  # dispatched at versions 0, 1 and 2
STEP = 4


def scheduler_of(at_deadline: AtDeadline, published: int = STEP - 2) -> OverlappedScheduler:
    """Of the round of step 4, which trains one group: it is the last that may train the old
    one."""
    carried = tuple(
        Carried(ref=PromptRef(prompt_id=name, domain="any"), dispatched=Dispatched(version=version))
        for version, name in enumerate((OLD, MIDDLE, NEW))
    )
    policy = AsynchronousConfig(async_ratio=3, at_deadline=at_deadline)
    turn = PlanningInputs(
        state=QueueState(carried=carried, num_drawn=6, num_trained=3),
        batch=BatchConfig(prompts_per_step=1, responses_per_prompt=2),
        step=STEP,
        num_steps=20,
        domains=("any",) * 40,
        seed=0,
        published=published,
    )
    plan = policy.plan_round(turn)
    assert plan is not None
    scheduler = policy.scheduler(plan)
    assert isinstance(scheduler, OverlappedScheduler)
    scheduler.start()
    return scheduler


def complete(scheduler: OverlappedScheduler, prompt_id: str) -> list[Decision]:
    """What is decided while both responses of a group get their verdicts."""
    decisions: list[Decision] = []
    for index in range(2):
        decisions += scheduler.handle(Finished(prompt_id=prompt_id, index=index, num_tokens=1))
        scored = Scored(prompt_id=prompt_id, index=index, outcome=Outcome.OK, reward=1.0)
        decisions += scheduler.handle(scored)
    return decisions


@pytest.mark.parametrize("at_deadline", ["drop", "park"])
def test_a_late_group_has_time_while_earlier_steps_train(at_deadline: AtDeadline) -> None:
    scheduler = scheduler_of(at_deadline)
    assert complete(scheduler, NEW) == []
    decisions = complete(scheduler, OLD)
    assert decisions[0] == AcceptGroup(prompt_id=OLD, indices=(0, 1))
    assert Carry(prompt_id=NEW, version=2, indices=(0, 1)) in decisions
    assert decisions[-1] == CloseRound()


@pytest.mark.parametrize("at_deadline", ["drop", "park"])
def test_it_is_given_up_when_the_step_can_train_without_it(at_deadline: AtDeadline) -> None:
    """Of what is complete by then, the group of the nearest deadline is trained."""
    scheduler = scheduler_of(at_deadline)
    assert complete(scheduler, NEW) == complete(scheduler, MIDDLE) == []
    decisions = scheduler.publish(Published(version=STEP - 1))
    given_up = Drop if at_deadline == "drop" else Defer
    assert [each for each in decisions if isinstance(each, AcceptGroup)] == [
        AcceptGroup(prompt_id=MIDDLE, indices=(0, 1))
    ]
    assert given_up(prompt_id=OLD, is_late=True) in decisions
    assert Carry(prompt_id=NEW, version=2, indices=(0, 1)) in decisions
    assert decisions[-1] == CloseRound()


@pytest.mark.parametrize("at_deadline", ["drop", "park", "train_anyway"])
def test_a_step_that_could_train_takes_what_is_complete_at_once(at_deadline: AtDeadline) -> None:
    decisions = complete(scheduler_of(at_deadline, published=STEP - 1), NEW)
    assert decisions[0] == AcceptGroup(prompt_id=NEW, indices=(0, 1))
    assert decisions[-1] == CloseRound()


def test_nothing_is_held_where_nothing_is_given_up() -> None:
    decisions = complete(scheduler_of("train_anyway"), NEW)
    assert decisions[0] == AcceptGroup(prompt_id=NEW, indices=(0, 1))
