"""What over-sampling launches, keeps and loses."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from round_factories import make_engines, make_plan, plan_round, simulate_run

from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import assemble
from research.ablations.over_sampling import OverSamplingConfig
from research.ablations.policies import ComparedConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Defer,
    Drop,
    RoundPlan,
)
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round
from tasks.scheduling.short_round import ShortRoundScheduler
from tests.unit.test_scheduling_schedulers import answer

BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)
DOMAINS = ("add", "letters") * 500


def planned(policy: OverSamplingConfig, state: QueueState, step: int) -> RoundPlan | None:
    return plan_round(state, BATCH, policy, domains=DOMAINS, seed=3, step=step, num_steps=5)


@pytest.mark.parametrize(("eta", "lost"), [(1.25, 2), (1.5, 4), (2.0, 8), (3.0, 16)])
def test_every_step_loses_what_it_launches_beyond_what_it_trains(eta: float, lost: int) -> None:
    policy = OverSamplingConfig(prompt_overprovision=eta)
    algebra, state = policy.algebra(BATCH), QueueState()
    assert (algebra.dropped_prompts, algebra.max_drain_steps, algebra.period_steps) == (lost, 0, 1)
    for step in range(1, 6):
        plan = planned(policy, state, step)
        assert plan is not None
        names = [ref.prompt_id for ref in plan.prompts]
        assert len(names) == 8 + lost
        assert (plan.accept_prompts, plan.launch_per_prompt, plan.num_queued) == (8, 4, 0)
        assert {quota.domain for quota in plan.quotas} == {"add", "letters"}
        state = finish_round(state, plan, RoundEnd(accepted=names[:8], dropped=names[8:]))
        assert (state.queue, state.num_dropped) == ((), lost * step)
        assert state.num_drawn == state.num_trained + state.num_dropped
    assert planned(policy, state, 6) is None


def test_it_keeps_what_tail_batching_keeps_and_drops_what_that_puts_off() -> None:
    plan = make_plan("short", domains=("a",) * 4, accept_prompts=2)
    keeps, puts_off = OverSamplingConfig().scheduler(plan), ShortRoundScheduler(plan)
    assert keeps.start() == puts_off.start()
    assert answer(keeps, "p3", 0, 1) == answer(puts_off, "p3", 0, 1)
    assert answer(keeps, "p1", 0, 1) == [
        AcceptGroup(prompt_id="p1", indices=(0, 1)),
        Abort(prompt_id="p0", indices=(0, 1)),
        Abort(prompt_id="p2", indices=(0, 1)),
        Drop(prompt_id="p0", is_late=True),
        Drop(prompt_id="p2", is_late=True),
        CloseRound(),
    ]
    assert answer(puts_off, "p1", 0, 1)[-3:-1] == [Defer(prompt_id="p0"), Defer(prompt_id="p2")]


def test_the_same_state_plans_the_same_round_after_json() -> None:
    policy = OverSamplingConfig(dynamic_sampling=1.0)
    plan = planned(policy, QueueState(), 1)
    assert plan is not None
    names = [ref.prompt_id for ref in plan.candidates]
    end = RoundEnd(accepted=names[:8], dropped=names[8:10], filtered=names[10:11])
    state = finish_round(QueueState(), plan, end)
    again = QueueState.from_json(json.loads(json.dumps(state.to_json())))
    assert planned(policy, state, 2) == planned(policy, again, 2)


def test_what_it_trains_is_shorter_than_what_was_drawn() -> None:
    """Under tail batching with the same factor it is not: nothing is lost there."""

    def trained(policy: OverSamplingConfig | TailBatchingConfig) -> tuple[float, int]:
        rounds = run_virtual(
            simulate_run(
                BatchConfig(prompts_per_step=16, responses_per_prompt=4),
                policy,
                num_steps=5,
                engines=make_engines(4),
                domains=DOMAINS,
            )
        )
        lengths = [
            len(response.generated.token_ids)
            for played in rounds
            for group in played.result.groups
            for response in group.responses
        ]
        return sum(lengths) / len(lengths), rounds[-1].state.num_dropped

    (kept, num_lost), (all_of_them, none) = (
        trained(OverSamplingConfig()),
        trained(TailBatchingConfig()),
    )
    assert (num_lost, none) == (20, 0)
    assert kept < 0.9 * all_of_them


def test_it_has_no_use_without_a_factor_and_says_what_is_lost() -> None:
    with pytest.raises(ValidationError, match="prompt_overprovision"):
        OverSamplingConfig(prompt_overprovision=1.0)
    values = assemble("tiny", "", ["scheduling.kind=over_sampling"])
    rows = dict(algebra_rows(ComparedConfig.model_validate(values)))
    assert "those that finish last: short answers are favoured" in rows["prompts lost per step"]
