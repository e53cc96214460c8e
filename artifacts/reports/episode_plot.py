"""What became of episodes over the steps of a run: how often they succeed, and in how many turns.

Drawn of runs that have episodes; leaves out the figures themselves (`episode_figures`).
"""

from __future__ import annotations

from matplotlib.figure import Figure

from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, INK, Steps, draw_figure, over_steps
from artifacts.reports.episode_figures import LONGEST, SUCCESS, TRAINED_TURNS, TURNS


def episodes_by_step(steps: Steps) -> Figure:
    """The two panels."""
    figure = Figure(figsize=(10.0, 3.4), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle("Episodes", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    success, turns = figure.subplots(1, 2)
    draw_figure(success, steps, SUCCESS, "success", "#cc6677")
    success.set(ylabel="share of episodes", ylim=(-0.02, 1.02))
    draw_figure(turns, steps, LONGEST, "longest", FAINT)
    draw_figure(turns, steps, TURNS, "mean", "#4477aa")
    draw_figure(turns, steps, TRAINED_TURNS, "mean of trained", "#44aa99")
    turns.set(ylabel="turns", ylim=(0, None))
    over_steps((success, turns))
    return figure
