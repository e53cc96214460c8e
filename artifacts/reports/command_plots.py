"""Pictures that commands draw: two runs side by side, and a throughput profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from artifacts.reports.canvas import (
    DOTS_PER_INCH,
    INK,
    TITLE,
    Style,
    legend,
    new_panels,
    over_steps,
    plain,
    png,
)
from artifacts.reports.plots import RUN_COLOURS, smoothed

Numbers = Sequence[float]
RING: Style = {"marker": "o", "markersize": 7, "fillstyle": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """The numbers of one run in a comparison."""

    name: str  # for the legend
    steps: Sequence[int]  # committed steps
    reward: Sequence[float]  # mean training reward of each
    step_s: Sequence[float]  # seconds each took
    is_long: Sequence[bool]  # whether each was a long round, whose prompts are the hard ones


def comparison(first: RunCurves, second: RunCurves) -> Figure:
    """Two runs side by side: reward by step, reward by time, and the time of each step; rings mark
    long rounds."""
    figure = Figure(figsize=(13.0, 4.4), dpi=DOTS_PER_INCH, layout="constrained")
    by_step, by_time, times = figure.subplots(1, 3)
    for run, colour in zip((first, second), RUN_COLOURS, strict=True):
        elapsed_s = list(accumulate(run.step_s))
        _draw_curve(by_step, run.steps, run.reward, smoothed(run.reward), run, colour)
        _draw_curve(by_time, elapsed_s, run.reward, smoothed(run.reward), run, colour)
        _draw_curve(times, run.steps, run.step_s, run.step_s, run, colour)
    by_step.set_ylabel("mean training reward")
    by_time.set(xlabel="training time, seconds", ylabel="mean training reward")
    times.set_ylabel("seconds per step")
    times.set_ylim(bottom=0)
    titles = {"Reward by step": by_step, "Reward by time": by_time, "Step time": times}
    for title, axes in titles.items():
        axes.set_title(title, loc="left", **TITLE)
        plain(axes)
    for axes in (by_step, times):
        over_steps(axes)
    handles, names = by_step.get_legend_handles_labels()
    if any((*first.is_long, *second.is_long)):
        handles.append(Line2D([], [], color=INK, linewidth=0, **RING))
        names.append("long round")
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_curve(
    axes: Axes, x: Numbers, raw: Numbers, line: Numbers, run: RunCurves, colour: str
) -> None:
    """Draw a line and the single values as dots, with rings around the values of long rounds."""
    axes.plot(x, line, color=colour, linewidth=2, label=run.name)
    axes.plot(x, raw, color=colour, linewidth=0, marker=".", markersize=4, alpha=0.5)
    ringed = [list(compress(values, run.is_long)) for values in (x, raw)]
    axes.plot(*ringed, color=colour, linewidth=0, **RING)


COLOURS = ("#4477aa", "#cc6677", "#44aa99", "#eecc66", "#882255", "#88ccee", "#117733", "#999933")


def throughput_plot(curves: Mapping[str, Sequence[tuple[int, float, float]]], title: str) -> bytes:
    """Draw prefill and decode tokens per second by batch size, as PNG bytes. curves: by label, the
    points (batch size in responses, prefill tokens/s, decode tokens/s) of a line."""
    figure, panels = new_panels(9.0, 4.0, title, columns=2)
    measured = sorted({point[0] for points in curves.values() for point in points})
    for column, (axes, name) in enumerate(zip(panels, ("prefill", "decode"), strict=True), start=1):
        for number, (label, points) in enumerate(curves.items()):
            batches, rates = [point[0] for point in points], [point[column] for point in points]
            colour = COLOURS[number % len(COLOURS)]
            style: Style = {"marker": "o", "markersize": 4, "color": colour}
            axes.plot(batches, rates, label=label, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(measured, labels=[str(batch) for batch in measured])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="responses in the batch", ylabel=f"{name} tokens/s")
        plain(axes)
    legend(panels[1])
    return png(figure)
