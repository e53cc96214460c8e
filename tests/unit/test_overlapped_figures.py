"""A step that overlaps others in figures: how old its weights were, what loads made engines compute
again, and who waited for whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from learner_factories import make_group
from plan_factories import make_report, make_step_plan, span

from artifacts.records import Group, Running, VersionSpan
from artifacts.store import Store
from tasks.engines.base import EngineStats
from tasks.learner.reports import AccumulateReport
from tasks.learner.version_sums import TokenSums, VersionSums
from tasks.metrics.report import StepReport
from tasks.metrics.step_metrics import step_metrics
from tasks.rounds.figures import unclaimed
from tasks.rounds.records import InFlight, RoundResult
from tasks.rounds.report import close_round, read_round, round_report
from tasks.scheduling.events import Carry
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.staleness import Admission

ADMISSION = Admission(async_ratio=2, prompts_per_step=1, num_steps=9, num_before=0, version=2)


def overlapped_report(at_update: Running = Running.INTERRUPT) -> StepReport:
    """Step 4, whose round waited 1.5 s for weights and whose training might have begun at 3 s;
    engines took 2 s to finish what they ran before they loaded its weights."""
    plan = make_step_plan(4, kind="any")
    overlapped = replace(plan.round, admission=ADMISSION, at_update=at_update)
    plan = replace(plan, round=overlapped)
    report = make_report((span("rollout", 0, 3),), plan=plan)
    return replace(
        report,
        rollout=replace(report.rollout, awaited_weights_s=1.5),
        published=replace(report.published, drained_s=2.0),
        gradients=replace(report.gradients, spans=(span("train", 5, 8), span("train", 6, 8))),
        turn_s=3.0,
    )


def group_of(*versions: tuple[tuple[int, int], ...]) -> Group:
    """A group of responses, each with its spans as (version, tokens)."""
    lengths = [sum(count for _, count in spans) for spans in versions]
    tokens = [tuple(range(length)) for length in lengths]
    group = make_group((1, 2), tokens, [1.0] * len(versions))
    spans = [
        tuple(VersionSpan(version=version, num_tokens=count) for version, count in response)
        for response in versions
    ]
    responses = tuple(
        replace(response, generated=replace(response.generated, versions=sampled))
        for response, sampled in zip(group.responses, spans, strict=True)
    )
    return replace(group, responses=responses)


def test_the_lag_is_that_of_the_oldest_token_of_each_response() -> None:
    group = group_of(((1, 4), (2, 3), (3, 2)), ((3, 5),))
    metrics = step_metrics(overlapped_report(), QueueState(), (group,))
    assert metrics["lag/mean_versions"] == 1.0
    assert metrics["lag/max_versions"] == 2.0
    assert metrics["lag/mixed_fraction"] == 0.5


def test_a_load_has_the_tokens_before_it_computed_again() -> None:
    group = group_of(((1, 4), (2, 3), (3, 2)), ((3, 5),), ((2, 1), (3, 1)))
    metrics = step_metrics(overlapped_report(), QueueState(), (group,))
    assert metrics["lag/recomputed_tokens"] == 4 + (4 + 3) + 1
    for other in (Running.KEEP, Running.DRAIN):
        metrics = step_metrics(overlapped_report(other), QueueState(), (group,))
        assert metrics["lag/recomputed_tokens"] == 0


def test_who_waited_for_whom_is_told() -> None:
    metrics = step_metrics(overlapped_report(), QueueState(), (group_of(((3, 5),)),))
    assert metrics["stall/rollout_s"] == 1.5 + 2.0
    assert metrics["stall/learner_s"] == pytest.approx(2.0)


def test_in_turn_no_learner_waits_and_caches_are_computed_again() -> None:
    report = overlapped_report(Running.DROP)
    paused = replace(report.plan, round=replace(report.plan.round, pauses=True))
    group = group_of(((2, 4), (3, 2)))
    metrics = step_metrics(replace(report, plan=paused), QueueState(), (group,))
    assert metrics["stall/learner_s"] == 0
    assert metrics["lag/recomputed_tokens"] == 4


def test_of_a_synchronous_step_nothing_of_it_is_told() -> None:
    metrics = step_metrics(make_report(()), QueueState(), (group_of(((0, 5),)),))
    assert not [name for name in metrics if name.startswith(("lag/", "stall/"))]


def test_what_lost_its_gradient_is_told_by_lag_over_all_ranks() -> None:
    def rank(version: int, num_cut: int) -> AccumulateReport:
        sums = TokenSums(num_tokens=10, num_tokens_cut=num_cut, mismatch_k3_sum=0.5)
        return AccumulateReport(num_tokens_clippable=10, by_version=VersionSums({version: sums}))

    report = overlapped_report()
    ranks = (rank(3, 0), rank(1, 4), rank(1, 2))
    report = replace(report, gradients=replace(report.gradients, ranks=ranks))
    metrics = step_metrics(report, QueueState(), (group_of(((3, 5),)),))
    assert metrics["lag/cut_fraction_at_0"] == 0.0
    assert metrics["lag/cut_fraction_at_2"] == pytest.approx(0.3)
    assert metrics["lag/mismatch_k3_at_2"] == pytest.approx(0.05)
    assert metrics["lag/tokens_fraction_at_2"] == pytest.approx(2 / 3)


def test_prompts_that_leave_a_round_untrained_are_told_by_reason() -> None:
    report = overlapped_report()
    rollout = replace(
        report.rollout, dropped=("a", "b", "c"), deferred=("d", "e"), late=("b", "c", "d")
    )
    metrics = step_metrics(replace(report, rollout=rollout), QueueState(), ())
    told = {name: count for name, count in metrics.items() if name.endswith("_prompts")}
    assert told["round/dropped_unscored_prompts"] == 1
    assert told["round/dropped_late_prompts"] == 2
    assert told["round/parked_late_prompts"] == 1
    assert told["round/deferred_prompts"] == 1


def test_what_engines_go_on_with_and_nobody_is_to_have_is_counted() -> None:
    left = InFlight(engine="engine-0", prompt_id="0/7", index=1, attempt=1, num_kept=0)
    result = RoundResult(
        accepted=(),
        groups=(),
        deferred=(),
        dropped=(),
        filtered=(),
        generated=(),
        migrated=(),
        scores=(),
        in_flight=(left,),
    )
    reading = EngineStats(
        engine="engine-0",
        kv_usage_max=0.0,
        kv_tokens=1,
        progress={"0/7:1": 4, "0/8:0": 2},
        num_preemptions=0,
        tokens_generated=6,
    )
    assert unclaimed(result, [reading]) == {"0/8:0"}
    report = overlapped_report()
    report = replace(report, rollout=round_report(result, [reading], {}, is_evaluation=False))
    assert step_metrics(report, QueueState(), ())["engine/unclaimed_responses"] == 1


def test_what_a_round_carries_is_read_back(tmp_path: Path) -> None:
    carried = (
        Carry(prompt_id="0/1", version=2, indices=(0, 4)),
        Carry(prompt_id="0/2", version=3),
    )
    report = replace(overlapped_report().rollout, carried=carried)
    close_round(Store.open(str(tmp_path)), 4, report)
    assert read_round(Store.open(str(tmp_path)), 4) == report
