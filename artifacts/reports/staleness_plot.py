"""How stale the tokens were that a run trained, and what it cost: three panels over its steps.

    lag of what is trained | effective sample and share without gradient | k3 by lag

Drawn of runs whose steps overlap; leaves out what the limits are (`tasks.metrics.monitors`).
"""

from __future__ import annotations

from matplotlib.figure import Figure

from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, INK, Steps, draw_figure, over_steps

LAG, LARGEST = "lag/mean_versions", "lag/max_versions"
EFFECTIVE, CUT = "train/effective_sample_fraction", "train/cut_fraction"
K3_AT = "lag/mismatch_k3_at_"
LAG_COLOURS = ("#4477aa", "#66aabb", "#88bb88", "#ccbb44", "#ee8866", "#cc6677", "#882255")


def staleness(steps: Steps) -> Figure:
    """The three panels."""
    figure = Figure(figsize=(10.0, 3.4), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle("Staleness", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    lag, cost, divergence = figure.subplots(1, 3)
    draw_figure(lag, steps, LAG, "mean", LAG_COLOURS[0])
    draw_figure(lag, steps, LARGEST, "largest", FAINT)
    lag.set(ylabel="versions behind", ylim=(0, None))
    draw_figure(cost, steps, EFFECTIVE, "effective sample", LAG_COLOURS[0])
    draw_figure(cost, steps, CUT, "without gradient", LAG_COLOURS[5])
    cost.set(ylabel="share of tokens", ylim=(0, 1.02))
    for place, name in enumerate(_names_at(steps)):
        label = f"lag {name.removeprefix(K3_AT)}"
        draw_figure(divergence, steps, name, label, LAG_COLOURS[place % len(LAG_COLOURS)])
    divergence.set(ylabel="k3 a token, engine to learner", ylim=(0, None))
    over_steps((lag, cost, divergence))
    return figure


def _names_at(steps: Steps) -> list[str]:
    """The figures of k3 by lag that there are, by lag."""
    found = {name for _, figures in steps for name in figures if name.startswith(K3_AT)}
    return sorted(found, key=lambda name: int(name.removeprefix(K3_AT)))
