"""The figures of an ablation: paired speed-ups with their intervals, and Markdown tables. Pure.

A step costs the seconds that it adds to its run (`seconds_added`): where steps overlap, the time
from the end of the step before it to its own. The first one of an asynchronous run fills the
pipeline and counts like any other.

What is compared is time per trained group, and per trained token beside it, over a block: one
period of tail batching in one repeat. A long round pays for the short ones before it, so that
single steps of different schedules do not compare; a period trains as many groups under each of
them. Variants of one repeat begin with one seed and run one after the other, so their blocks are
pairs. The interval is Student's over the logarithms of the blocks' ratios: of the three to five
blocks that one can afford, a bootstrap over blocks covers far less than it says (of three, 75 %).
Blocks of one repeat share its prompts and its hour: repeats are worth more than longer runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median, stdev

from artifacts.commit import StepCommit, seconds_added
from artifacts.records import NO_UPDATE
from artifacts.reports.summary import Estimate
from research.ablations.ideal_steps import Ideal

STAGES = ("rollout", "reward", "train", "update", "publish", "orchestration")
TIMES = {
    "step, begun to ended": "time/step_s",
    "rollout, whole": "time/rollout_s",
    "reward, exposed": "time/reward_exposed_s",
    "reward workers": "time/reward_busy_s",
}
FIGURES = {
    "tokens generated": "rollout/tokens",
    "tokens trained": "ledger/trained_tokens",
    "longest response": "rollout/response_tokens_max",
    "bubble: tail": "bubble/tail_fraction",
    "bubble: reward": "bubble/reward_wait_fraction",
    "groups streamed": "train/streamed_groups",
    "time limits hit": "reward/timeouts",
    "of them early": "reward/early_kills",
    "training reward": "reward/mean",
}
T_975 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
)


Costs = dict[tuple[int, int], float]  # seconds per trained unit by (repeat, block)
Trained = Callable[[Sequence[StepCommit]], Sequence[float]]  # how much each step trained


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One variant in one repeat; a drain's steps are not among its steps."""

    variant: str  # name in the table of variants
    repeat: int  # from 1; runs of one repeat have one seed
    steps: tuple[StepCommit, ...]  # from step 1
    idle_fraction: float = 0.0  # share of the devices' seconds in steps without work
    # mean held-out reward by prompt id after the last step; empty where too few were asked
    heldout: Mapping[str, float] = field(default_factory=dict)
    questions: Mapping[str, str] = field(default_factory=dict)  # what these prompts ask
    # mean held-out reward by the step after which it was asked, 0 before the first
    validation: Mapping[int, float] = field(default_factory=dict)
    ideal: Ideal | None = None  # its steps at best; None where that cannot be told


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A line of the tables."""

    name: str  # the variant's
    label: str  # what a reader sees
    over: str  # the variant that it adds something to; empty for the first


def trained_groups(steps: Sequence[StepCommit]) -> list[int]:
    """Groups that each step trained; `steps` from the first on."""
    totals = [0, *(step.counters["prompts_trained"] for step in steps)]
    return [after - before for before, after in pairwise(totals)]


def trained_tokens(steps: Sequence[StepCommit]) -> list[float]:
    """Tokens that each step trained, or would have if its rewards had differed."""
    unused = f"ledger/{NO_UPDATE}_tokens"
    return [step.metrics["ledger/trained_tokens"] + step.metrics.get(unused, 0) for step in steps]


def block_costs(run: MeasuredRun, period: int, trained: Trained = trained_groups) -> Costs:
    """Seconds per trained group (or token) by (repeat, block).

    A run shorter than a period is one block; steps beyond the last whole block are left out.
    """
    length = min(period, len(run.steps))
    seconds = seconds_added(run.steps)
    amounts = trained(run.steps)
    starts = range(0, len(run.steps) - length + 1, length) if length else ()
    return {
        (run.repeat, place): sum(seconds[start : start + length])
        / sum(amounts[start : start + length])
        for place, start in enumerate(starts)
    }


def costs_of(
    runs: Sequence[MeasuredRun], variant: str, period: int, trained: Trained = trained_groups
) -> Costs:
    """Seconds per trained group (or token) of every block of a variant."""
    own = [run for run in runs if run.variant == variant]
    return {block: cost for run in own for block, cost in block_costs(run, period, trained).items()}


def student(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval of at least one value; of a single one it is unbounded."""
    middle, count = mean(values), len(values)
    half = math.inf
    if count > 1:
        half = T_975[min(count - 1, len(T_975)) - 1] * stdev(values) / math.sqrt(count)
    return Estimate(mean=middle, low=middle - half, high=middle + half, num_samples=count)


def speed_up(
    before: Mapping[tuple[int, int], float], after: Mapping[tuple[int, int], float]
) -> Estimate | None:
    """How many times faster `after` is, over the blocks that both have: geometric mean and 95 %
    interval; None without a common block.

    Of a single block the interval is unbounded.
    """
    logs = [
        math.log(before[block] / after[block]) for block in sorted(before.keys() & after.keys())
    ]
    if not logs:
        return None
    found = student(logs)
    return Estimate(
        mean=math.exp(found.mean),
        low=math.exp(found.low),
        high=math.exp(found.high),
        num_samples=found.num_samples,
    )


def report(lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int) -> str:
    """All tables as Markdown, of the variants that have a run."""
    shown = [line for line in lines if any(run.variant == line.name for run in runs)]
    return (
        "\n\n".join((_speed_ups(shown, runs, period), _times(shown, runs), _tokens(shown, runs)))
        + "\n"
    )


def _speed_ups(lines: Sequence[TableLine], runs: Sequence[MeasuredRun], period: int) -> str:
    costs = {line.name: costs_of(runs, line.name, period) for line in lines}
    per_token = {line.name: costs_of(runs, line.name, period, trained_tokens) for line in lines}
    first = lines[0].name if lines else ""
    rows = [
        (
            line.label,
            f"{_median_step_s(runs, line.name):.1f}",
            f"{mean(costs[line.name].values()):.2f}",
            interval(speed_up(costs[first], costs[line.name])) if line.name != first else "1",
            interval(speed_up(costs[line.over], costs[line.name])) if line.over in costs else "",
            interval(speed_up(per_token[first], per_token[line.name]))
            if line.name != first
            else "1",
            str(len(costs[line.name])),
        )
        for line in lines
    ]
    head = (
        *("variant", "step, s (median)", "s per trained group", f"speed-up over {first} [95 %]"),
        *("over what it adds to", f"per trained token over {first}", "blocks"),
    )
    return markdown_table(head, rows)


def _median_step_s(runs: Sequence[MeasuredRun], variant: str) -> float:
    own = [run.steps for run in runs if run.variant == variant]
    return median(seconds for steps in own for seconds in seconds_added(steps))


def _times(lines: Sequence[TableLine], runs: Sequence[MeasuredRun]) -> str:
    """Means, which sum to the step: a median would hide the long rounds."""
    return _means(
        "seconds of a step (mean)",
        lines,
        runs,
        {stage: stage for stage in STAGES} | TIMES,
        "{:.2f}".format,
    )


def _tokens(lines: Sequence[TableLine], runs: Sequence[MeasuredRun]) -> str:
    return _means(
        "a step (mean)",
        lines,
        runs,
        FIGURES,
        lambda figure: f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}",
    )


def _means(
    title: str,
    lines: Sequence[TableLine],
    runs: Sequence[MeasuredRun],
    figures: Mapping[str, str],
    told: Callable[[float], str],
) -> str:
    """A column for each of `figures`: heading -> stage or metric."""
    rows = [
        (
            line.label,
            *(
                told(mean(value(step, name) for step in steps_of(runs, line.name)))
                for name in figures.values()
            ),
        )
        for line in lines
    ]
    return markdown_table((title, *figures), rows)


def value(step: StepCommit, name: str) -> float:
    """A stage's seconds or a metric."""
    return step.timings[name] if name in STAGES else step.metrics[name]


def steps_of(runs: Sequence[MeasuredRun], variant: str) -> list[StepCommit]:
    """Every step of a variant, over all repeats."""
    return [step for run in runs if run.variant == variant for step in run.steps]


def interval(estimate: Estimate | None) -> str:
    """A mean with its interval, if it has one."""
    if estimate is None:
        return ""
    told = f"{estimate.mean:.2f}"
    return (
        told if estimate.num_samples == 1 else f"{told} [{estimate.low:.2f}, {estimate.high:.2f}]"
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head; the first column is text, the others are figures."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
