"""A step in figures: stages that sum to the step, and metrics under stable names."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_factories import make_group
from plan_factories import CONTEXT, make_report, make_step_plan, span

from artifacts.commit import StepCommit
from artifacts.prices import PriceConfig
from artifacts.records import Group, Span
from artifacts.store import Store
from flows.step_controller import StepCommitter
from tasks.elastic.worker_history import WorkerHistory
from tasks.learner.reports import AccumulateReport, Skipped, token_means
from tasks.metrics.report import STAGES, stage_times
from tasks.metrics.step_metrics import running_totals, step_metrics
from tasks.rewards.judges.batcher import JudgeSpan, JudgingReport
from tasks.scheduling.events import PromptRef
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.queue_state import QueueState

moments = st.floats(-5, 15, allow_nan=False)
spans = st.builds(span, st.sampled_from([*STAGES[:-1], "gate"]), moments, moments)


@given(st.lists(spans, max_size=12))
def test_stages_sum_to_the_window_whatever_overlaps(worked: list[Span]) -> None:
    times = stage_times(make_report(tuple(worked)))
    assert tuple(times) == STAGES
    assert sum(times.values()) == pytest.approx(10.0)
    assert min(times.values()) >= -1e-9


def test_a_moment_of_two_stages_counts_for_the_earlier_one() -> None:
    worked = (
        span("rollout", 0, 5),
        span("reward", 4, 6),
        span("train", 5, 8),
        span("update", 8, 8.5),
        span("publish", 9, 9.5),
    )
    times = stage_times(make_report(worked))
    assert times == pytest.approx(
        {"rollout": 5, "reward": 1, "train": 2, "update": 0.5, "publish": 0.5, "orchestration": 1}
    )


def test_what_was_generated_before_the_step_was_repeated_costs_it_nothing() -> None:
    times = stage_times(make_report((span("rollout", -100, -50), span("train", -1, 2))))
    assert (times["rollout"], times["train"], times["orchestration"]) == (0, 2, 8)


def groups() -> tuple[Group, ...]:
    return (
        make_group((1, 2), [(3,), (4, 5)], [1.0, 0.0]),
        make_group((1, 2), [(3,), (4, 5)], [1.0, None], prompt_id="0/1"),
    )


def test_metrics_have_their_stable_names_and_values() -> None:
    worked = (span("rollout", 0, 4), span("reward", 3, 5), span("train", 5, 8))
    ranks = (
        AccumulateReport(num_tokens=30, num_groups=2),
        AccumulateReport(num_tokens=12, num_groups=2, num_groups_flat=1),
    )
    state = QueueState(queue=(PromptRef(prompt_id="0/7", domain="test"),), num_dropped=2)
    metrics = step_metrics(
        make_report(worked, plan=make_step_plan(3, "drain", attempt=2), ranks=ranks),
        state,
        groups(),
    )
    expected = {
        "time/step_s": 10.0,
        "time/rollout_s": 4.0,
        "time/reward_exposed_s": 0.0,
        "time/reward_busy_s": 0.5,
        "time/train_s": 3.0,
        "time/orchestration_s": 2.0,
        "round/is_long": 1.0,
        "round/attempts": 2.0,
        "queue/long_prompts": 1.0,
        "queue/dropped_prompts": 2.0,
        "rollout/tokens": 24.0,
        "rollout/tokens_per_s": 6.0,
        "rollout/responses": 2.0,
        "rollout/response_tokens_mean": 10.0,
        "rollout/response_tokens_max": 15.0,
        "engine/preemptions": 3.0,
        "acceptance/reward_bias": 0.25,
        "reward/mean": 2 / 3,
        "reward/test_mean": 2 / 3,
        "reward/infra": 1.0,
        "publish/probe_difference_nats": 0.02,
        "ledger/trained_tokens": 20.0,
        "ledger/aborted_tokens": 4.0,
        "train/loss": 0.25,
        "train/grad_norm": 2.0,
        "train/applied": 1.0,
        "train/tokens": 42.0,
        "train/flat_group_fraction": 0.25,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9_]+", name) for name in metrics)


def test_a_step_without_a_response_has_figures_too() -> None:
    metrics = step_metrics(make_report((), lengths=()), QueueState(), ())
    assert (
        metrics["rollout/tokens_per_s"],
        metrics["reward/mean"],
        metrics["rollout/response_tokens_max"],
    ) == (0, 0, 0)
    assert metrics["time/orchestration_s"] == metrics["time/step_s"] == 10
    assert metrics["bubble/idle_fraction"] == 1


def test_the_host_is_no_device_whose_idleness_counts() -> None:
    worked = (
        Span(device="host", actor="reward", kind="reward", start_s=0, end_s=10),
        span("rollout", 0, 10),
    )
    metrics = step_metrics(make_report(worked), QueueState(), ())
    assert sum(value for name, value in metrics.items() if name.startswith("bubble/")) == 0


def test_judges_have_figures_in_a_run_that_has_judges() -> None:
    plan = make_step_plan()
    judged = replace(plan, run=replace(plan.run, judges=("judge-0",)))
    spans = (JudgeSpan(judge="judge-0", start_s=1, end_s=3),)
    judging = JudgingReport(
        num_calls=7,
        num_cache_hits=3,
        num_verdicts=8,
        num_yes=2,
        num_compared=4,
        num_agreed=3,
        new_tokens=7,
        spans=spans,
    )
    report = make_report((), plan=judged)
    metrics = step_metrics(
        replace(report, reward=replace(report.reward, judging=judging)), QueueState(), ()
    )
    expected = {
        "reward/judge_calls": 7,
        "reward/judge_cache_hits": 3,
        "reward/judge_infra": 0,
        "reward/judge_yes_rate": 0.25,
        "reward/judge_agreement": 0.75,
        "time/judge_busy_s": 2,
        "ledger/judged_tokens": 7,
        "ledger/trained_tokens": 20,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert "reward/judge_agreement" not in step_metrics(report, QueueState(), ())


def test_truncated_weights_have_a_share_and_a_clip_only_where_it_can_act() -> None:
    truncating = AccumulateReport(num_tokens_scored=8, num_tokens_truncated=2, importance_sum=12.0)
    clipping = AccumulateReport(num_tokens_scored=8, num_tokens_clippable=8, num_tokens_clipped=4)
    figures = token_means(truncating)
    assert (figures["train/truncated_fraction"], figures["train/importance_mean"]) == (0.25, 1.5)
    assert not [name for name in figures if "ratio" in name or "clip" in name]
    assert token_means(clipping)["train/clip_fraction"] == 0.5
    gating = AccumulateReport(num_responses_droppable=4, num_responses_dropped=1)
    assert token_means(gating)["train/gated_fraction"] == 0.25


def test_counters_are_the_totals_of_the_run_up_to_the_step() -> None:
    made = make_report(())
    update = replace(made.policy.update, skipped=Skipped.NONFINITE)
    skipped = replace(made, policy=replace(made.policy, update=update))
    state = QueueState(num_drawn=9, num_trained=7)
    totals: dict[str, int] = {}
    for report in (made, skipped, made):
        totals = running_totals(totals, step_metrics(report, state, ()), state)
    assert totals == {
        "prompts_drawn": 9,
        "prompts_trained": 7,
        "responses_finished": 6,
        "updates_made": 2,
        "updates_skipped_empty": 0,
        "updates_skipped_flat": 0,
        "updates_skipped_critic_warmup": 0,
        "updates_skipped_nonfinite": 1,
        "tokens_trained": 40,
        "tokens_aborted": 12,
        "tokens_discarded": 0,
        "tokens_filtered": 0,
        "tokens_stale": 0,
        "tokens_evaluated": 0,
        "tokens_judged": 0,
        "tokens_no_update": 20,
        "tokens_learned": 0,
        "responses_learned": 0,
        "tokens_decided": 0,
        "responses_decided": 0,
    }


def test_counters_go_on_where_an_earlier_attempt_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(num_steps=9, seed=0, rewards=CONTEXT.rewards, prices=PriceConfig())
    given = {"config": config, "context": CONTEXT, "store": Store.open("memory://counters")}
    nothing = SimpleNamespace(read=lambda step: [], read_groups=lambda step, rows: [])

    def committed(step: int, before: StepCommit | None) -> StepCommit:
        run: Any = SimpleNamespace(**given)  # Any: stands in for an open run
        records = StepCommitter(run, WorkerHistory(run.store, tuple))
        monkeypatch.setattr(records, "_journal", nothing)
        report = make_report((), plan=make_step_plan(step))
        return records.record(report, QueueState(), PlannerState(), None, before)

    first = committed(1, None)
    resumed = committed(2, first)
    assert (first.counters["tokens_trained"], resumed.counters["tokens_trained"]) == (20, 40)
    assert resumed.counters["updates_made"] == 2


@pytest.mark.parametrize(
    ("lost_tokens", "sum_and_most"), [((3, 8, 5), (16.0, 8.0)), ((), (None, None))]
)
def test_a_step_tells_what_lost_engines_cost_where_anybody_knows(
    lost_tokens: tuple[int, ...], sum_and_most: tuple[float | None, float | None]
) -> None:
    report = make_report(())
    rollout = replace(report.rollout, num_interrupted=3, lost_tokens_bounds=lost_tokens)
    metrics = step_metrics(replace(report, rollout=rollout), QueueState(), ())
    assert metrics["rollout/interrupted_responses"] == 3
    names = "rollout/lost_tokens_bound", "rollout/lost_tokens_bound_of_one"
    assert tuple(map(metrics.get, names)) == sum_and_most
    undisturbed = step_metrics(report, QueueState(), ())
    assert [undisturbed[name] for name in names] == [0, 0]
