"""The metrics of a step, made of the reports of its stages. Pure.

A policy that gives up slow responses is fast because it trains short ones. `length/trained_share`
measures how short: it is the mean trained length over the mean sampled length, 1 without bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add

from artifacts.records import NO_UPDATE, Fate, Group, Prompt, Running
from artifacts.reports.episode_figures import step_episode_figures
from artifacts.reports.timeline import bubble_shares, device_times, stage_s, visiting_times
from artifacts.tables import ResponseRow
from tasks.learner.reports import Skipped, token_means, update_figures
from tasks.learner.version_sums import figures_by_lag
from tasks.metrics.monitors import CUT, HIGHEST, LOWEST, VERDICTS
from tasks.metrics.report import StepReport, reward_exposed_s, stage_times
from tasks.rounds.report import RolloutReport
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.staleness import staleness_figures


def step_metrics(
    report: StepReport, state: QueueState, groups: tuple[Group, ...]
) -> dict[str, float]:
    """Every metric of a step by its stable name, `stage/quantity_unit`. state: the queue after the
    step; groups: those that the step trains."""
    difference = report.published.probe_difference_nats  # None where no check compares the probes
    return {
        **_time_metrics(report),
        **_round_metrics(report, state),
        **_rollout_metrics(report),
        **length_figures(report.rollout, groups),
        **_reward_metrics(report, groups),
        **({} if difference is None else {"publish/probe_difference_nats": difference}),
        **report.rollout.acceptance,
        **{f"ledger/{column}_tokens": float(count) for column, count in report.ledger.items()},
        **_bubble_metrics(report),
        **_overlap_metrics(report, groups),
        **_domain_rewards(groups),
        **_adapter_rewards(groups),
        **_judge_metrics(report),
        **_learner_metrics(report),
    }


def episode_metrics(rollout: RolloutReport, rows: Sequence[ResponseRow]) -> dict[str, float]:
    """Metrics of the episodes among a step's recorded responses; empty without episodes."""
    decided = {*rollout.accepted, *rollout.filtered, *rollout.dropped}
    return step_episode_figures(rows, decided)


def _time_metrics(report: StepReport) -> dict[str, float]:
    times = stage_times(report)
    return {
        "time/step_s": report.duration_s,
        "time/rollout_s": report.rollout_s,
        "time/reward_exposed_s": reward_exposed_s(report),
        "time/reward_busy_s": report.reward.busy_s,
        "time/train_s": times["train"],
        "time/update_s": times["update"],
        "time/publish_s": times["publish"],
        "time/gate_s": report.published.check_s,
        "time/orchestration_s": times["orchestration"],
    }


def _round_metrics(report: StepReport, state: QueueState) -> dict[str, float]:
    rollout = report.rollout
    late = frozenset(rollout.late)
    return {
        "round/is_long": float(report.plan.round.is_long),
        "round/attempts": float(report.plan.attempt),
        "queue/long_prompts": float(len(state.queue)),
        "queue/dropped_prompts": float(state.num_dropped),
        "queue/unfit_prompts": float(state.num_unfit),
        "queue/filtered_prompts": float(state.num_filtered),
        "round/filtered_prompts": float(len(rollout.filtered)),
        "round/dropped_unscored_prompts": float(len({*rollout.dropped} - late)),
        "round/dropped_late_prompts": float(len(late.intersection(rollout.dropped))),
        "round/parked_late_prompts": float(len(late.intersection(rollout.deferred))),
        "round/deferred_prompts": float(len({*rollout.deferred} - late)),
    }


def _rollout_metrics(report: StepReport) -> dict[str, float]:
    rollout = report.rollout
    rollout_s = report.rollout_s
    num_tokens = sum(rollout.tokens.values())
    lengths = rollout.lengths or (0,)
    bounds = rollout.lost_tokens_bounds
    lost = {  # the most tokens that were lost with engines
        "rollout/lost_tokens_bound": float(sum(bounds)),
        "rollout/lost_tokens_bound_of_one": float(max(bounds, default=0)),
    }
    if rollout.num_interrupted and not bounds:  # the engines reported nothing
        lost = {}
    return {
        "rollout/tokens": float(num_tokens),
        "rollout/tokens_per_s": num_tokens / rollout_s if rollout_s else 0.0,
        "rollout/responses": float(len(rollout.lengths)),
        "rollout/response_tokens_mean": sum(lengths) / len(lengths),
        "rollout/response_tokens_max": float(max(lengths)),
        "rollout/migrated_responses": float(rollout.num_migrated),
        "rollout/freed_learners": float(len(rollout.freed)),
        "rollout/interrupted_responses": float(rollout.num_interrupted),
        **lost,
        "engine/preemptions": float(rollout.num_preemptions),
        "engine/kv_usage_max": rollout.kv_usage_max,
        "engine/unclaimed_responses": float(rollout.num_unclaimed),
        "engine/replicas": float(len(report.plan.run.engines)),
        "engine/relayout_s": stage_s(report.relayout, "wake", *report.window),
    }


def _reward_metrics(report: StepReport, groups: tuple[Group, ...]) -> dict[str, float]:
    judged = [
        (response.generated, response.score.reward)
        for group in groups
        for response in group.responses
        if response.score and response.score.reward is not None
    ]
    rewards = [reward for _, reward in judged]
    num_cut = sum(generated.finish_reason == "length" for generated, _ in judged)
    return {
        "reward/mean": sum(rewards) / max(1, len(rewards)),
        VERDICTS: float(len(rewards)),
        **({LOWEST: min(rewards), HIGHEST: max(rewards)} if rewards else {}),
        CUT: num_cut / max(1, len(rewards)),
        "reward/infra": float(report.reward.num_infra),
        "reward/timeouts": float(report.reward.num_timeouts),
        "reward/early_kills": float(report.reward.num_early_kills),
        "reward/unneeded": float(report.reward.num_unneeded),
    }


def _bubble_metrics(report: StepReport) -> dict[str, float]:
    devices = report.plan.run.own_devices
    elastic_workers = sorted(
        {device for names in report.rollout.joined.values() for device in names}
    )
    times = [
        *device_times(report.spans, devices, *report.window),
        *visiting_times(report.spans, elastic_workers, *report.window),
    ]
    return {f"bubble/{cause}_fraction": share for cause, share in bubble_shares(times).items()}


TOTALS = {  # counters of a run, and the figures of a step that add to them
    "tokens_learned": "length/trained_tokens",
    "responses_learned": "length/trained_responses",
    "tokens_decided": "length/sampled_tokens",
    "responses_decided": "length/sampled_responses",
}
COUNTED = {  # counters of a run, and the figures of a step that add to them
    "responses_finished": "rollout/responses",
    "updates_made": "train/applied",
    **{f"updates_skipped_{reason}": f"train/skipped_{reason}" for reason in Skipped},
    **{f"tokens_{column}": f"ledger/{column}_tokens" for column in (*Fate, NO_UPDATE)},
    **TOTALS,
}


def running_totals(
    before: Mapping[str, int], figures: Mapping[str, float], state: QueueState
) -> dict[str, int]:
    """The totals of a run after a step: the totals before it, plus the figures of the step."""
    return {
        "prompts_drawn": state.num_drawn,
        "prompts_trained": state.num_trained,
        **{
            counter: before.get(counter, 0) + int(figures.get(figure, 0.0))
            for counter, figure in COUNTED.items()
        },
    }


def _overlap_metrics(report: StepReport, groups: tuple[Group, ...]) -> dict[str, float]:
    """Staleness, and how long rollout and learner waited; only of asynchronous steps."""
    plan, total = report.plan.round, report.trained
    if plan.admission is None:
        return {}
    step, recomputes = plan.step, plan.pauses or plan.at_update is Running.INTERRUPT
    # when the learners began; from turn_s on they might have
    begun_s = min((span.start_s for span in report.gradients.spans), default=report.turn_s)
    return {
        **staleness_figures(step, groups, recomputes=recomputes),
        **figures_by_lag(total.by_version, step - 1, may_drop_gradients=total.may_drop_gradients),
        "stall/rollout_s": report.rollout.awaited_weights_s + report.published.drained_s,
        "stall/learner_s": 0.0 if plan.pauses else max(0.0, begun_s - report.turn_s),
        "stall/evaluation_s": report.held_s,
        "queue/carried_prompts": float(len(report.rollout.carried)),
        "round/left_running": float(len(report.rollout.in_flight)),
    }


def _domain_rewards(groups: tuple[Group, ...]) -> dict[str, float]:
    means = _mean_rewards(groups, lambda prompt: prompt.domain)
    return {f"reward/{domain}_mean": mean for domain, mean in means.items()}


def _adapter_rewards(groups: tuple[Group, ...]) -> dict[str, float]:
    means = _mean_rewards(groups, lambda prompt: prompt.adapter)
    return {f"adapter/{name}_reward_mean": mean for name, mean in means.items() if name}


def _mean_rewards(groups: tuple[Group, ...], key: Callable[[Prompt], str]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for group in groups:
        for response in group.responses:
            if response.score is not None and response.score.reward is not None:
                found.setdefault(key(group.prompt), []).append(response.score.reward)
    return {name: sum(rewards) / len(rewards) for name, rewards in found.items()}


def _judge_metrics(report: StepReport) -> dict[str, float]:
    """Metrics of the judges, for a run that has any; a share of nothing is left out."""
    judging = report.reward.judging
    if not report.plan.run.judges:
        return {}
    figures = {
        "reward/judge_calls": float(judging.num_calls),
        "reward/judge_batches": float(judging.num_batches),
        "reward/judge_cache_hits": float(judging.num_cache_hits),
        "reward/judge_infra": float(judging.num_infra),
        "reward/judge_vetoed": float(judging.num_vetoed),
        "reward/judge_too_long": float(judging.num_too_long),
        "reward/judge_prompt_tokens": float(judging.prompt_tokens),
        "time/judge_busy_s": sum(span.end_s - span.start_s for span in judging.spans),
    }
    if judging.num_verdicts:
        figures["reward/judge_yes_rate"] = judging.num_yes / judging.num_verdicts
    if judging.num_compared:
        figures["reward/judge_agreement"] = judging.num_agreed / judging.num_compared
    return figures


def _learner_metrics(report: StepReport) -> dict[str, float]:
    if not report.plan.run.learners:
        return {}
    total = reduce(add, report.policy.ranks, report.trained)
    return (
        token_means(total)
        | update_figures(report.policy.update)
        | {
            "train/tokens": float(total.num_tokens),
            "train/streamed_groups": float(report.gradients.num_groups_streamed),
            "train/tokens_computed": float(total.num_tokens_computed),
            "train/prompt_tokens_saved": float(total.num_prompt_tokens_saved),
            "train/masked_responses": float(total.num_responses_masked),
            "train/micro_batches": float(total.num_micro_batches),
            "train/tokens_per_s": total.num_tokens_computed / total.busy_s if total.busy_s else 0.0,
        }
    )


def length_figures(rollout: RolloutReport, groups: tuple[Group, ...]) -> dict[str, float]:
    """Numbers of tokens and responses in a step: "trained" counts its trained groups, "sampled" all
    responses to prompts that its round trained, filtered or dropped."""
    lengths = [response.generated.num_sampled for group in groups for response in group.responses]
    figures = {
        "length/trained_tokens": float(sum(lengths)),
        "length/trained_responses": float(len(lengths)),
        "length/sampled_tokens": float(rollout.num_decided_tokens),
        "length/sampled_responses": float(rollout.num_decided_responses),
    }
    return figures | _share("length/trained_share", [*figures.values()])


def lengths_so_far(totals: Mapping[str, int]) -> dict[str, float]:
    """The metric `length/trained_share_so_far` of a run with these totals."""
    return _share("length/trained_share_so_far", [totals.get(counter, 0) for counter in TOTALS])


def _share(name: str, counts: Sequence[float]) -> dict[str, float]:
    """The mean trained length over the mean sampled one; empty where either has no response."""
    trained_tokens, num_trained, sampled_tokens, num_sampled = counts
    if not (num_trained and sampled_tokens):
        return {}
    return {name: trained_tokens / num_trained * num_sampled / sampled_tokens}
