"""The picture of an ablation, from numbers to PNG bytes: reward by samples and by time, and where a
step's time goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, GRID, INK, png
from artifacts.reports.plots import KIND_COLOURS, smoothed

COLOURS = ("#222222", "#4477aa", "#cc6677", "#44aa99", "#aa4499", "#999933", "#661100")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCurves:
    """One variant as it is drawn, means over its repeats."""

    label: str  # for the legend
    samples: Sequence[float]  # groups trained up to each step
    elapsed_s: Sequence[float]  # seconds of steps up to each step
    reward: Sequence[float]  # mean training reward of each step
    stages_s: Mapping[str, float]  # mean seconds of a step by stage
    # of each repeat: seconds of steps, held-out reward
    validation: Sequence[Sequence[tuple[float, float]]] = ()


def ablation_plot(variants: Sequence[VariantCurves]) -> bytes:
    """Three panels, and one of held-out rewards if there are some; reward lines are smoothed over
    five steps, which is a period of tail batching at its defaults."""
    is_validated = any(variant.validation for variant in variants)
    figure = Figure(figsize=(20.0 if is_validated else 15.0, 4.6), dpi=DOTS_PER_INCH)
    figure.set_layout_engine("constrained")
    by_samples, by_time, times, *more = figure.subplots(1, 4 if is_validated else 3)
    for axes in more:
        _draw_validation(axes, variants)
    for place, variant in enumerate(variants):
        for axes, x in ((by_samples, variant.samples), (by_time, variant.elapsed_s)):
            axes.plot(
                x,
                smoothed(variant.reward),
                color=COLOURS[place % len(COLOURS)],
                linewidth=2,
                label=variant.label,
            )
            axes.plot(
                x,
                variant.reward,
                color=COLOURS[place % len(COLOURS)],
                linewidth=0,
                marker=".",
                markersize=4,
                alpha=0.5,
            )
    _draw_stages(times, variants)
    by_samples.set(xlabel="groups trained", ylabel="mean training reward")
    by_time.set(xlabel="seconds of steps", ylabel="mean training reward")
    times.set(xlabel="seconds of a step, mean")
    for axes, title in (
        (by_samples, "Reward at equal samples"),
        (by_time, "Reward at equal time"),
        (times, "Step time by stage"),
        *((axes, "Held-out reward at equal time") for axes in more),
    ):
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    by_samples.legend(frameon=False, fontsize=9)
    times.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return png(figure)


def _draw_validation(axes: Axes, variants: Sequence[VariantCurves]) -> None:
    """A line for each repeat of a variant, with a dot for each evaluation."""
    for place, variant in enumerate(variants):
        for repeat, points in enumerate(variant.validation):
            axes.plot(
                [time_s for time_s, _ in points],
                [reward for _, reward in points],
                color=COLOURS[place % len(COLOURS)],
                marker="o",
                markersize=4,
                label=None if repeat else variant.label,
            )
    axes.set(xlabel="seconds of steps", ylabel="held-out reward")
    axes.legend(frameon=False, fontsize=9)


def _draw_stages(axes: Axes, variants: Sequence[VariantCurves]) -> None:
    """A bar per variant, the first on top."""
    labels = [variant.label for variant in variants]
    left = [0.0] * len(variants)
    for stage in dict.fromkeys(stage for variant in variants for stage in variant.stages_s):
        seconds = [variant.stages_s.get(stage, 0.0) for variant in variants]
        axes.barh(
            labels,
            seconds,
            left=left,
            color=KIND_COLOURS.get(stage, FAINT),
            label=stage,
            height=0.7,
        )
        left = [start + width for start, width in zip(left, seconds, strict=True)]
    axes.invert_yaxis()
