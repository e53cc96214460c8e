"""The files of runs at a constant lag, and what they say: a table and a picture. Pure but for the
reading.

Intervals are Student's over seeds. A difference to the reference is of the runs of one seed, which
ask the same questions with the same noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, INK, plain
from artifacts.reports.summary import Estimate
from flows.experiments.ablation_figures import markdown_table, student
from tasks.alarm import SCORED, AlarmConfig, alarms_of

REWARD = "reward/mean"
EFFECTIVE, DRIFT, CUT, ENTROPY = (
    "train/effective_sample_fraction",
    "train/mismatch_k3",
    "train/cut_fraction",
    "train/entropy_nats",
)
# whose figures are drawn beside the rewards
TOLD = {"sync": INK, "ppo": "#4477aa", "ppo-lag-8": "#999933", "wrong": "#cc6677"}
COLUMNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run's file, as far as it has been written."""

    name: str  # of the file
    settings: Mapping[str, Any]  # Any: JSON values
    steps: tuple[tuple[int, Mapping[str, float]], ...]  # step and its figures
    heldout: float | None  # mean held-out reward; None while it runs
    cpu_s: float  # CPU seconds that the run took, 0 while it runs

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """None where there is no file, or an empty one."""
        lines = [*map(json.loads, path.read_text().splitlines())] if path.exists() else []
        if not lines:
            return None
        end = lines[-1] if "heldout" in lines[-1] else {}
        return cls(
            name=path.name,
            settings=lines[0],
            steps=tuple((line["step"], line["figures"]) for line in lines if "step" in line),
            heldout=end.get("heldout"),
            cpu_s=end.get("cpu_s", 0.0),
        )

    @property
    def is_finished(self) -> bool:
        return self.heldout is not None

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    def told(self, figure: str) -> dict[int, float]:
        """A figure by step, where there is one; the learner has none where it scored no token."""
        return {
            step: figures[figure]
            for step, figures in self.steps
            if figure in figures and (figures.get(SCORED) or not figure.startswith("train/"))
        }

    def warnings(self) -> dict[str, int]:
        """The step at which the alarm first tells of a figure, by figure."""
        first: dict[str, int] = {}
        for alarm in alarms_of(self.steps, AlarmConfig.model_validate(self.settings["alarm"])):
            first.setdefault(alarm.rule.figure, alarm.step)
        return first


Runs = Mapping[str, Sequence[Recorded]]  # finished ones by variant, in the order of the seeds


def read_runs(directory: Path, variants: Sequence[str]) -> Runs:
    """Of those variants that have a finished run."""
    found: dict[str, list[Recorded]] = {}
    for variant in variants:
        for path in directory.glob(f"{variant}-*.jsonl"):
            run = Recorded.read(path)
            if run is not None and run.is_finished and run.settings["variant"] == variant:
                found.setdefault(variant, []).append(run)
    return {variant: sorted(runs, key=lambda run: run.seed) for variant, runs in found.items()}


def paired(reference: Sequence[Recorded], runs: Sequence[Recorded]) -> Estimate | None:
    """Held-out reward over that of the reference, of the seeds that both have."""
    before = {run.seed: run.heldout for run in reference}
    gains = [
        run.heldout - other
        for run in runs
        if run.heldout is not None and (other := before.get(run.seed)) is not None
    ]
    return student(gains) if gains else None


def table(runs: Runs, reference: str) -> str:
    """Markdown; a line for each variant."""
    head = (
        *("variant", "lag", "held-out", f"over {reference}", "training reward", "least effective"),
        *("largest k3", "largest cut", "entropy left", "grad norm", "warns", "CPU s", "seeds"),
    )
    rows = [_row(variant, own, runs.get(reference, ())) for variant, own in runs.items()]
    return markdown_table(head, rows)


def _row(variant: str, runs: Sequence[Recorded], reference: Sequence[Recorded]) -> tuple[str, ...]:
    heldout = student([run.heldout for run in runs if run.heldout is not None])
    gain = paired(reference, runs) if runs is not reference else None
    return (
        variant,
        str(runs[0].settings["lag"]),
        f"{heldout.mean:.3f}{_bounds(heldout, '.3f')}",
        "" if gain is None else f"{gain.mean:+.3f}{_bounds(gain, '+.3f')}",
        _over_seeds(runs, REWARD, mean, ".3f"),
        _over_seeds(runs, EFFECTIVE, min, ".2f"),
        _over_seeds(runs, DRIFT, max, ".3f"),
        _over_seeds(runs, CUT, max, ".2f"),
        _over_seeds(runs, ENTROPY, lambda values: values[-1] / values[0], ".2f"),
        _over_seeds(runs, "train/grad_norm", mean, ".2f"),
        _told_warnings(runs),
        f"{mean(run.cpu_s for run in runs):.0f}",
        str(len(runs)),
    )


def _over_seeds(
    runs: Sequence[Recorded],
    figure: str,
    of: Any,  # Any: mean, min, max and the like have no type in common
    form: str,
) -> str:
    """Mean over the seeds of something of a run's steps; nothing where no step has the figure."""
    values = [of([*run.told(figure).values()]) for run in runs if run.told(figure)]
    return format(mean(values), form) if values else ""


def _bounds(estimate: Estimate, form: str) -> str:
    if estimate.num_samples == 1:
        return ""
    return f" [{estimate.low:{form}}, {estimate.high:{form}}]"


def _told_warnings(runs: Sequence[Recorded]) -> str:
    """Of each figure that the alarm tells of: in how many runs, and the first step of any."""
    steps: dict[str, list[int]] = {}
    for run in runs:
        for figure, step in run.warnings().items():
            steps.setdefault(figure, []).append(step)
    return ", ".join(
        f"{figure.removeprefix('train/')} from {min(first)} ({len(first)} of {len(runs)})"
        for figure, first in sorted(steps.items(), key=lambda item: min(item[1]))
    )


def picture(runs: Runs, reference: str) -> Figure:
    """Training reward of every variant beside the reference's, and what the figures of some
    say."""
    shown = [variant for variant in runs if variant != reference and runs[variant][0].steps]
    num_rows = math.ceil(len(shown) / COLUMNS)
    figure = Figure(figsize=(13.0, 2.0 * num_rows + 3.0), dpi=DOTS_PER_INCH, layout="constrained")
    heights = (2.0 * num_rows, 3.0)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    panels = above.subplots(num_rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, variant in zip(panels.flat, shown, strict=False):
        _band(axes, runs.get(reference, ()), REWARD, FAINT, reference)
        _band(axes, runs[variant], REWARD, "#4477aa", variant)
        axes.set_title(f"{variant}, lag {runs[variant][0].settings['lag']}", fontsize=9)
        plain(axes)
    above.supylabel("training reward", fontsize=9)
    told = below.subplots(1, 4)
    _figures_of(told, runs)
    below.legend(*told[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(TOLD))
    return figure


def _figures_of(panels: Sequence[Axes], runs: Runs) -> None:
    """What tells of staleness, with the limits of the alarm and the steps at which it warns."""
    told = {variant: runs[variant] for variant in TOLD if variant in runs}
    for axes, (figure, limit, title) in zip(panels, _limits(runs), strict=True):
        for variant, own in told.items():
            _band(axes, own, figure, TOLD[variant], f"{variant}, lag {own[0].settings['lag']}")
            for run in own:
                _mark(axes, run, figure, TOLD[variant])
        if limit is not None:
            axes.axhline(limit, color=INK, linewidth=0.8, linestyle="--")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("step", fontsize=9)
        plain(axes)
    panels[1].set_yscale("log")


def _limits(runs: Runs) -> Iterator[tuple[str, float | None, str]]:
    """Figure, limit and title of each panel."""
    first = next(iter(runs.values()))[0]
    alarm = AlarmConfig.model_validate(first.settings["alarm"])
    yield EFFECTIVE, alarm.min_effective_sample_fraction, "effective sample fraction"
    yield DRIFT, alarm.max_mismatch_k3, "k3, sampler to learner"
    yield ENTROPY, None, "entropy, nats"
    yield REWARD, None, "training reward"


def _mark(axes: Axes, run: Recorded, figure: str, colour: str) -> None:
    """A cross where the alarm first tells of the figure."""
    step = run.warnings().get(figure)
    if step is not None:
        axes.plot([step], [run.told(figure)[step]], marker="x", color=colour)


def _band(axes: Axes, runs: Sequence[Recorded], figure: str, colour: str, label: str) -> None:
    """Mean over the seeds by step, and what lies between the smallest and the largest."""
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for step, value in run.told(figure).items():
            by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    axes.plot(
        steps, [mean(by_step[step]) for step in steps], color=colour, linewidth=1.4, label=label
    )
    axes.fill_between(
        steps,
        [min(by_step[step]) for step in steps],
        [max(by_step[step]) for step in steps],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
