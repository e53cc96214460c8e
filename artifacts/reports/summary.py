"""The summary of a run: its gain in reward, its cost, links, and its interruptions, as Markdown for
MLflow and the report folder, and as rich text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from artifacts.commit import RunManifest, StepCommit
from artifacts.episodes import Ending
from artifacts.reports.device_cost import RunCost
from artifacts.reports.episode_figures import ENDED

NUM_RESAMPLES = 10_000
LEVEL = 0.95  # coverage of confidence intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its confidence interval."""

    mean: float  # point estimate
    low: float  # lower end of the interval
    high: float  # upper end of the interval
    num_samples: int  # independent samples it rests on: questions
    level: float = LEVEL  # coverage of the interval

    def __str__(self) -> str:
        return (
            f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}] ({self.level:.0%},"
            f" n={self.num_samples})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The content of a run's summary."""

    run_id: str  # the run's name
    num_steps: int  # committed steps
    run_s: float  # seconds of its steps, without those between two attempts at the run
    # mean held-out reward of the model the run started from, or without evaluations that of the
    # rounds; not a number if no response has a verdict, as below
    reward_before: float
    # mean held-out reward of the last weights that were evaluated; None before there are any
    reward_after: float | None
    # paired difference of the two over the held-out prompts that both have a verdict on; None
    # without any
    gain: Estimate | None
    # held-out prompts left out of it, because every response before or after lacks a verdict
    num_unpaired: int
    time_s: Mapping[str, float]  # seconds by stage over all steps; shares are of their sum
    ledger_tokens: Mapping[str, int]  # generated tokens by ledger column; they sum to all tokens
    links: Mapping[str, str]  # name -> URL or path
    warnings: tuple[str, ...] = ()  # of figures beyond their limits
    cost: RunCost | None = None  # of a run whose devices have prices
    # what MLflow lacks and how it gets that; for the terminal at the end of the run
    untracked: str = ""
    # of several adapters, each one's mean held-out reward in the last evaluation
    adapters: Mapping[str, float] = field(default_factory=dict)
    is_heldout: bool = True  # False for a run that does not train: its rewards are of its rounds


def paired_difference(
    before: Mapping[str, float],
    after: Mapping[str, float],
    seed: int,
    question_of: Mapping[str, str] | None = None,
) -> Estimate:
    """Mean of after - before over the prompts in both, with a percentile bootstrap over questions.

    Keys are prompt ids, values mean rewards per prompt. Questions are the independent samples,
    prompts that ask the same question are not (`question_of`: prompt id -> question; without it
    every prompt asks its own question). Raises ValueError if no prompt is on both sides.
    """
    names = sorted(before.keys() & after.keys())
    if not names:
        raise ValueError(
            "a paired difference needs prompts that were scored before and after, got"
            f" {len(before)} and {len(after)} with none in common; evaluate both on one held-out"
            " set, and look at the rewards' failures"
        )
    by_question: dict[str, list[float]] = {}
    for name in names:
        by_question.setdefault((question_of or {}).get(name, name), []).append(
            after[name] - before[name]
        )
    sums, counts = np.array([[sum(values), len(values)] for values in by_question.values()]).T
    draws = np.random.default_rng(seed).integers(0, len(sums), (NUM_RESAMPLES, len(sums)))
    low, high = np.quantile(
        sums[draws].sum(axis=1) / counts[draws].sum(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    )
    mean = float(sums.sum() / counts.sum())
    return Estimate(mean=mean, low=float(low), high=float(high), num_samples=len(sums))


def unpaired(before: Mapping[str, float], after: Mapping[str, float]) -> int:
    """The number of prompts with a verdict on one side only."""
    return len(before.keys() ^ after.keys())


def mean_interval(
    scores: Mapping[str, float], seed: int, question_of: Mapping[str, str] | None = None
) -> Estimate:
    """Mean of held-out scores with its confidence interval; arguments and resampling as in
    `paired_difference`. Raises ValueError without scores."""
    return paired_difference(dict.fromkeys(scores, 0.0), scores, seed, question_of)


def shares(amounts: Mapping[str, float]) -> dict[str, float]:
    """Each amount's share of the sum, largest first; zeros when the sum is 0."""
    total = sum(amounts.values())
    ordered = sorted(amounts.items(), key=lambda item: -item[1])
    return {name: amount / total if total else 0.0 for name, amount in ordered}


ShareTable = tuple[str, tuple[str, str, str], list[tuple[str, str, str]]]  # title, heads, rows


def _tables(summary: RunSummary) -> list[ShareTable]:
    times, tokens = summary.time_s, summary.ledger_tokens
    time_rows = [
        (name, f"{times[name]:.1f}", f"{part:.1%}") for name, part in shares(times).items() if part
    ]
    token_rows = [
        (name, f"{tokens[name]:,}", f"{part:.1%}") for name, part in shares(tokens).items() if part
    ]
    tables: list[ShareTable] = [
        ("time", ("stage", "seconds", "share"), time_rows),
        ("generated tokens", ("tokens", "count", "share"), token_rows),
    ]
    if cost := summary.cost:
        cost_rows = [(name, f"{seconds:.1f}", f"{part:.1%}") for name, seconds, part in cost.rows]
        tables.append((cost.headline, ("held", "device seconds", "share"), cost_rows))
    return tables


def markdown(summary: RunSummary) -> str:
    """Write the summary as Markdown, for MLflow and for report/summary.md."""
    untracked = [summary.untracked] if summary.untracked else []
    warnings = [f"* Warning: {warning}" for warning in (*summary.warnings, *untracked)]
    lines = [f"# {summary.run_id}", "", headline(summary), *([""] if warnings else []), *warnings]
    for title, heads, rows in _tables(summary):
        lines += ["", title] if summary.cost and title == summary.cost.headline else []
        if rows:
            lines += ["", f"| {' | '.join(heads)} |", "|---|---:|---:|"]
            lines += [f"| {' | '.join(row)} |" for row in rows]
    links = (
        f"* {name}: {f'[{link}]({link})' if link.startswith('http') else f'`{link}`'}"
        for name, link in summary.links.items()
    )
    return "\n".join([*lines, "", *links]) + "\n"


def description(summary: str) -> str:
    """The description of a run in MLflow, from its summary in Markdown: the headline, and where the
    rest is."""
    told = next(filter(None, (line.strip() for line in summary.splitlines()[1:])), "")
    return f"{told}\n\nArtifacts: `report/summary.md`, the page `report/index.html`."


def rich_summary(summary: RunSummary) -> Group:
    """Lay out the summary for a terminal."""
    tables: list[Table] = []
    for title, heads, rows in _tables(summary):
        table = Table(*heads, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        for column in table.columns[1:]:
            column.justify = "right"
        tables.append(table)
    links = [Text(f"{name}: {link}") for name, link in summary.links.items()]
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in summary.warnings]
    head = Text(summary.run_id, style="bold"), Text(headline(summary))
    return Group(*head, *warnings, *tables, *links)


def headline(summary: RunSummary) -> str:
    """The run's result in one line: held-out rewards, their difference, steps and seconds."""
    plural = "" if summary.num_steps == 1 else "s"
    steps = f"{summary.num_steps} step{plural} in {summary.run_s:.0f} s."
    if not summary.is_heldout:
        return f"Reward {summary.reward_before:.3f} of the rounds, without training. {steps}"
    if summary.reward_after is None:
        return f"Held-out reward {summary.reward_before:.3f} before training. {steps}"
    rewards = f"Held-out reward {summary.reward_before:.3f} -> {summary.reward_after:.3f}"
    if summary.adapters:
        best_first = sorted(summary.adapters.items(), key=lambda pair: (-pair[1], pair[0]))
        each = ", ".join(f"{name} {mean:.3f}" for name, mean in best_first)
        rewards += f", the mean of {len(best_first)} adapters ({each})"
    if summary.gain is None:
        return f"{rewards}; no prompt has a verdict on both sides. {steps}"
    unsure = "".join(f"; {doubt}" for doubt in doubts(summary))
    return f"{rewards}, paired difference {summary.gain}{unsure}. {steps}"


def doubts(summary: RunSummary) -> list[str]:
    """The reasons, if any, why the gain in reward says less than its mean suggests."""
    found = []
    if summary.num_unpaired:
        found.append(f"{summary.num_unpaired} prompts without a verdict on one side left out")
    if summary.gain and summary.gain.low <= 0 <= summary.gain.high:
        found.append("the interval contains 0, so this run shows no change")
    return found


ATTEMPTS = "round/attempts"


def interruptions(manifest: RunManifest, commits: Sequence[StepCommit]) -> str:
    """One line that counts a run's interruptions: resumes of the run, steps that began again within
    one attempt at the run, and episodes whose environment failed. Empty without any."""
    failed = [f"{ENDED}{ending}" for ending in Ending if ending.is_failure]
    figures = [commit.metrics for commit in commits]
    counts = {
        "resumed": max(0, len(manifest.prefect_flow_run_ids) - 1),
        "steps begun again": int(sum(step.get(ATTEMPTS, 1.0) - 1 for step in figures)),
        "episodes whose environment failed": int(
            sum(step.get(name, 0.0) for step in figures for name in failed)
        ),
    }
    return ", ".join(f"{subject}: {times}" for subject, times in counts.items() if times)


def seeding_summary(steps: Sequence[Mapping[str, float]]) -> str:
    """One line on the last step's seeding: seconds for which the run's own engines generated, and
    the number of elastic workers worth holding. Empty for a run that does not seed. steps: the
    metrics of each step."""
    figures = steps[-1] if steps else {}
    own_s = figures.get("seeding/own_s")
    if own_s is None:
        return ""
    if not figures["seeding/closed"]:
        end = "to the end of the round"
    elif figures["seeding/closed_early"]:
        end = "until they had nothing left to do"
    else:
        end = f"until their window of {figures['seeding/window_s']:.1f} s was over"
    line = f"seeding: own engines generated for {own_s:.1f} s, {end}"
    worth = figures.get("seeding/elastic_workers_worth_holding")
    return line if worth is None else f"{line}; {worth:.1f} elastic workers worth holding"
