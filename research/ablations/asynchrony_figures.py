"""What asynchrony gained beside what it could: two more tables for an ablation. Pure.

*At best* are the steps that the variant's own schedule takes with nothing but their work
(`ideal_steps`), by the records of the repeat's `sync`; times: `sync`'s measured steps over that;
*reached*: that over the measured ones, and measured trained tokens a second over those at best.
Lengths are those of `sync`: a variant whose answers come out longer reaches less of its steps, and
as much in tokens.

*Reward at equal time* is the mean training reward up to the moment at which the first variant of a
repeat ends, between the ends of whole periods; a variant that has not ended a period by then counts
its first. Held-out rewards are those after the last step, of all repeats together; what is
resampled are questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import TypeVar

import numpy as np

from artifacts.commit import seconds_added
from artifacts.reports.summary import Estimate, mean_interval, paired_difference
from research.ablations.ablation_figures import (
    MeasuredRun,
    TableLine,
    markdown_table,
    steps_of,
    trained_tokens,
)
from research.ablations.ideal_steps import Ideal

LAG = "lag/mean_versions"
STALLS = ("stall/rollout_s", "stall/learner_s")
Value = TypeVar("Value")


def asynchrony_report(lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int) -> str:
    """Both tables as Markdown, of the variants that have a run."""
    shown = [line for line in lines if any(run.variant == line.name for run in runs)]
    return f"{_speeds(shown, runs)}\n\n{_rewards(shown, runs, period)}\n"


def _speeds(lines: Sequence[TableLine], runs: Sequence[MeasuredRun]) -> str:
    head = (
        *("variant", "s a step", "trained tokens a second", "devices idle", "lag, mean"),
        *("engines wait, s", "learners wait, s", "at best, s", "at best, times", "reached"),
        "reached, in tokens",
    )
    first_s = mean_step_s(runs, lines[0].name) if lines else 0.0
    rows = []
    for line in lines:
        step_s, best = mean_step_s(runs, line.name), at_best(runs, line.name)
        steps = steps_of(runs, line.name)
        own = [run for run in runs if run.variant == line.name]
        stalls = (mean(step.metrics.get(name, 0.0) for step in steps) for name in STALLS)
        rows.append(
            (
                line.label,
                f"{step_s:.2f}",
                f"{tokens_per_s(own):.0f}",
                f"{mean(run.idle_fraction for run in own):.0%}",
                f"{mean(step.metrics.get(LAG, 0.0) for step in steps):.2f}",
                *(f"{seconds:.1f}" for seconds in stalls),
                *(
                    ("", "", "", "")
                    if best is None
                    else (
                        f"{best.step_s:.2f}",
                        f"{first_s / best.step_s:.2f}",
                        f"{best.step_s / step_s:.0%}",
                        f"{tokens_per_s(own) / best.tokens_per_s:.0%}",
                    )
                ),
            )
        )
    return markdown_table(head, rows)


def mean_step_s(runs: Sequence[MeasuredRun], variant: str) -> float:
    """Mean seconds that a step of the variant added to its run."""
    return mean(
        seconds for run in runs if run.variant == variant for seconds in seconds_added(run.steps)
    )


def tokens_per_s(runs: Sequence[MeasuredRun]) -> float:
    """Tokens that these runs trained in a second of their steps."""
    return sum(sum(trained_tokens(run.steps)) for run in runs) / sum(
        sum(seconds_added(run.steps)) for run in runs
    )


def at_best(runs: Sequence[MeasuredRun], variant: str) -> Ideal | None:
    """Of all of the variant's runs; None where that cannot be told of each."""
    own = [run for run in runs if run.variant == variant]
    told = [run.ideal for run in own if run.ideal is not None]
    if not told or len(told) < len(own):
        return None
    step_s = mean(ideal.step_s for ideal in told)
    tokens = mean(ideal.tokens_per_s * ideal.step_s for ideal in told)
    return Ideal(step_s=step_s, tokens_per_s=tokens / step_s)


def _rewards(lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int) -> str:
    first = lines[0].name if lines else ""
    at_equal_time = equal_time_rewards(lines, runs, period)
    before = heldout_scores(runs, first)
    questions = {
        name: question for run in runs for name, question in keyed(run, run.questions).items()
    }
    rows = []
    for line in lines:
        scores = heldout_scores(runs, line.name)
        own = mean_interval(scores, 0, question_of=questions) if scores else None
        is_paired = line.name != first and bool(before.keys() & scores.keys())
        gain = paired_difference(before, scores, 0, question_of=questions) if is_paired else None
        rewards = at_equal_time.get(line.name)
        rows.append(
            (line.label, f"{mean(rewards):.3f}" if rewards else "", _told(own), _told(gain, "+"))
        )
    head = ("variant", "training reward at equal time", "held-out reward [95 %]")
    return markdown_table((*head, f"over {first}, paired [95 %]"), rows)


def equal_time_rewards(
    lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int
) -> dict[str, list[float]]:
    """By variant, a figure for each repeat that all variants have."""
    found: dict[str, list[float]] = {line.name: [] for line in lines}
    for repeat in sorted({run.repeat for run in runs}):
        own = {run.variant: run for run in runs if run.repeat == repeat}
        if not found.keys() <= own.keys():
            continue
        until_s = min(sum(seconds_added(own[name].steps)) for name in found)
        for name, rewards in found.items():
            rewards.append(reward_until(own[name], period, until_s))
    return found


def reward_until(run: MeasuredRun, period: int, until_s: float) -> float:
    """The mean reward of the run's steps up to a moment, interpolated between the ends of its
    periods; of a run shorter than a period, at its end."""
    elapsed_s = list(accumulate(seconds_added(run.steps)))
    totals = list(accumulate(step.metrics["reward/mean"] for step in run.steps))
    length = min(period, len(run.steps))
    ends = range(length, len(run.steps) + 1, length)
    return float(
        np.interp(
            until_s,
            [elapsed_s[end - 1] for end in ends],
            [totals[end - 1] / end for end in ends],
        )
    )


def heldout_scores(runs: Sequence[MeasuredRun], variant: str) -> dict[str, float]:
    """Held-out rewards of the variant's runs, by repeat and prompt."""
    own = [run for run in runs if run.variant == variant]
    return {name: score for run in own for name, score in keyed(run, run.heldout).items()}


def keyed(run: MeasuredRun, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values with names that are the run's repeat's own."""
    return {f"{run.repeat}:{prompt_id}": value for prompt_id, value in values.items()}


def _told(estimate: Estimate | None, sign: str = "") -> str:
    if estimate is None:
        return ""
    mean_, low, high = (
        f"{figure:{sign}.3f}" for figure in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean_} [{low}, {high}]"
