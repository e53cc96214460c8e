"""Draws the report's pictures, each by a function from numbers to a figure. Leaves out how the
numbers are gathered and where the pictures are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from artifacts.records import Span
from artifacts.reports.canvas import (
    FAINT,
    INK,
    LANE,
    PAPER,
    TITLE,
    Style,
    legend,
    legend_below,
    new_figure,
    new_panels,
    over_steps,
    plain,
)
from artifacts.reports.episode_figures import LONGEST, SUCCESS, TRAINED_TURNS, TURNS
from artifacts.reports.summary import Estimate
from artifacts.reports.timeline import length, union

# Distinct under the common colour blindnesses and in grey: lightness differs as well as hue.
KIND_COLOURS = {
    "rollout": "#4477aa",
    "reward": "#eecc66",
    "train": "#cc6677",
    "update": "#882255",
    "publish": "#44aa99",
    "gate": "#117733",
    "evaluate": "#88ccee",
    "orchestration": "#c9ccd1",
}
SPARE_COLOURS = ("#aa4499", "#999933", "#661100", "#6699cc")
ROUND_COLOURS = ("#ee8866", "#6a3d9a", "#999933", "#8c8c8c")  # of kinds of rounds, as they appear
RUN_COLOURS = ("#4477aa", "#cc6677")
VISIBLE = 0.01  # least share of a step that a lane is drawn for
WIDTH = 5.2  # inches: letters stay legible where the page is as narrow as a phone


def reward_curve(
    steps: Sequence[int], reward: Sequence[float], heldout: Mapping[int, Estimate]
) -> Figure:
    """Draw mean training reward by step, smoothed and raw, and held-out reward with its confidence
    interval at the steps at which it was measured."""
    figure, axes = new_figure(WIDTH, 3.2, "Reward")
    dots: Style = {"linewidth": 0.8, "marker": ".", "markersize": 3, "alpha": 0.7}
    axes.plot(steps, reward, color=FAINT, label="training, per step", **dots)
    curve: Style = {"color": KIND_COLOURS["train"], "linewidth": 2}
    axes.plot(steps, smoothed(reward), label="training, smoothed", **curve)
    if heldout:
        measured = sorted(heldout)
        means = [heldout[step].mean for step in measured]
        below = [heldout[step].mean - heldout[step].low for step in measured]
        above = [heldout[step].high - heldout[step].mean for step in measured]
        level = f"{heldout[measured[0]].level:.0%}"
        style: Style = {"color": KIND_COLOURS["rollout"], "capsize": 3, "linewidth": 1.2}
        bars = axes.errorbar(measured, means, yerr=[below, above], **style)
        bars.lines[0].set(marker="o", markersize=5, linestyle=":")
        bars.set_label(f"held-out ({level} CI)")
    axes.set_ylabel("mean reward")
    over_steps(axes)
    legend(axes)
    return figure


def step_times(
    steps: Sequence[int], kinds: Sequence[str], stages: Mapping[str, Sequence[float]]
) -> Figure:
    """Draw a bar per step: its seconds, stacked by stage, with the kind of round marked underneath.
    Stages must not overlap in time."""
    figure, axes = new_figure(WIDTH, 3.6, "Step time by stage")
    bottoms = [0.0] * len(steps)
    for stage, colour in _coloured(list(stages)).items():
        axes.bar(steps, stages[stage], bottom=bottoms, width=0.85, color=colour, label=stage)
        bottoms = [bottom + seconds for bottom, seconds in zip(bottoms, stages[stage], strict=True)]
    top = max(bottoms, default=1.0) or 1.0
    of_round = _round_colours(kinds)
    for step, kind in zip(steps, kinds, strict=True):
        axes.bar([step], [0.025 * top], bottom=[-0.04 * top], width=0.85, color=of_round[kind])
    axes.set(ylabel="seconds", ylim=(-0.05 * top, 1.05 * top))
    over_steps(axes)
    rounds = [Patch(color=colour, label=f"{kind} round") for kind, colour in of_round.items()]
    stacked, _ = axes.get_legend_handles_labels()
    legend_below(figure, [*stacked, *rounds])
    return figure


def response_lengths(lengths: Mapping[str, Sequence[int]]) -> Figure:
    """Draw a histogram of response lengths in tokens for each kind of round. The panels share one
    horizontal axis, so that their tails can be compared."""
    colours = _round_colours(lengths)
    present = [kind for kind in colours if lengths[kind]]
    rows = max(1, len(present))
    figure, panels = new_panels(WIDTH, 1.2 + 1.4 * rows, "Response lengths", rows)
    longest = max((max(lengths[kind]) for kind in present), default=1)
    edges = [longest * edge / 40 for edge in range(41)]
    for axes, kind in zip(panels, present, strict=False):
        values = sorted(lengths[kind])
        axes.hist(values, bins=edges, color=colours[kind], edgecolor=PAPER, linewidth=0.5)
        for share, line in ((0.5, "-"), (0.99, ":")):
            place = min(len(values) - 1, int(share * len(values)))
            axes.axvline(values[place], color=INK, linewidth=1.1, linestyle=line)
        axes.set(ylabel="responses")
        plain(axes)
        mean = f"mean {sum(values) / len(values):.0f}"
        note = f"{kind} rounds   n={len(values):,}   {mean}   max {values[-1]}"
        axes.set_title(note, loc="right", fontsize=9, color=INK)
    panels[-1].set_xlabel("tokens (solid line: median, dotted: 99th percentile)")
    return figure


def timelines(rounds: Mapping[str, Sequence[Span]], devices: Iterable[str]) -> Figure:
    """Draw the work of every device in some steps, by title, in seconds since each step's first
    span: a panel per step, in it a row per device that has worked, with a lane per actor."""
    named = sorted(devices)
    rows = {title: _busy(spans) or named for title, spans in rounds.items()}
    shown = [
        span for title, worked in rows.items() for span in rounds[title] if span.device in worked
    ]
    heights = [0.9 + 0.4 * len(worked) for worked in rows.values()]
    figure, panels = new_panels(6.0, 1.0 + sum(heights), "", len(rows), height_ratios=heights)
    kinds = {span.kind for span in shown}
    known = [kind for kind in KIND_COLOURS if kind in kinds]
    colours = _coloured([*known, *sorted(kinds - {*known})])
    for axes, (title, worked) in zip(panels, rows.items(), strict=True):
        plain(axes)
        axes.set_title(title, loc="left", **TITLE)
        _draw_lanes(axes, rounds[title], worked, colours)
    panels[-1].set_xlabel("seconds")
    panels[-1].set_xlim(left=0)
    legend_below(figure, [Patch(color=colour, label=kind) for kind, colour in colours.items()])
    return figure


def _busy(spans: Sequence[Span]) -> list[str]:
    """The devices, by name, that worked for a visible share of the time."""
    moments: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        moments.setdefault(span.device, []).append((span.start_s, span.end_s))
    window_s = length(moment for found in moments.values() for moment in found)
    return sorted(
        device for device, found in moments.items() if length(found) >= VISIBLE * window_s
    )


def _draw_lanes(
    axes: Axes, spans: Sequence[Span], devices: Sequence[str], colours: Mapping[str, str]
) -> None:
    origin = min((span.start_s for span in spans), default=0.0)
    for row, device in enumerate(devices):
        axes.axhspan(row - 0.4, row + 0.4, color=LANE, linewidth=0)
        actors = sorted({span.actor for span in spans if span.device == device})
        height = 0.72 / max(1, len(actors))
        for (lane, actor), (kind, colour) in product(enumerate(actors), colours.items()):
            worker = device, actor, kind
            bars = union(
                (span.start_s, span.end_s)
                for span in spans
                if (span.device, span.actor, span.kind) == worker
            )
            axes.broken_barh(
                [(start - origin, end - start) for start, end in bars],
                (row - 0.36 + lane * height, height * 0.94),
                facecolors=colour,
                linewidth=0,
            )
    axes.set_ylim(len(devices) - 0.45, -0.55)
    axes.set_yticks(range(len(devices)), devices)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def smoothed(values: Sequence[float]) -> list[float]:
    """Smooth values by a centred mean over up to five of them, fewer at both ends, so that the
    curve is not shifted in time."""
    parts = [values[max(0, index - 2) : index + 3] for index in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _coloured(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for every kind of work: from KIND_COLOURS, or else a spare one."""
    unknown = [kind for kind in kinds if kind not in KIND_COLOURS]
    spare = {kind: SPARE_COLOURS[index % len(SPARE_COLOURS)] for index, kind in enumerate(unknown)}
    return {kind: KIND_COLOURS.get(kind) or spare[kind] for kind in kinds}


def _round_colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for every kind of round, in the order of their first appearance."""
    return dict(zip(dict.fromkeys(kinds), cycle(ROUND_COLOURS), strict=False))


LAG, LARGEST = "lag/mean_versions", "lag/max_versions"
EFFECTIVE, CUT = "train/effective_sample_fraction", "train/cut_fraction"
K3_AT = "lag/mismatch_k3_at_"
Steps = Sequence[tuple[int, Mapping[str, float]]]  # step numbers and their metrics
Lines = Mapping[str, tuple[str, str]]  # metric and colour of each line by its label
# label and limits of the vertical axis, and the lines
Panel = tuple[str, tuple[float | None, float | None], Lines]
LAG_COLOURS = ("#4477aa", "#66aabb", "#88bb88", "#ccbb44", "#ee8866", "#cc6677", "#882255")


def staleness(steps: Steps) -> Figure:
    """Draw the staleness of trained tokens over steps, for runs whose steps overlap. Three panels:
    lag in versions; effective sample and share of tokens without gradient; k3 divergence by lag."""
    names = {name for _, figures in steps for name in figures if name.startswith(K3_AT)}
    lags = sorted(int(name.removeprefix(K3_AT)) for name in names)
    by_lag = {
        f"lag {lag}": (f"{K3_AT}{lag}", LAG_COLOURS[place % len(LAG_COLOURS)])
        for place, lag in enumerate(lags)
    }
    lag = {"mean": (LAG, LAG_COLOURS[0]), "largest": (LARGEST, FAINT)}
    cost = {
        "effective sample": (EFFECTIVE, LAG_COLOURS[0]),
        "without gradient": (CUT, LAG_COLOURS[5]),
    }
    return _over_steps(
        "Staleness",
        steps,
        ("versions behind", (0, None), lag),
        ("share of tokens", (0, 1.02), cost),
        ("k3 a token, engine to learner", (0, None), by_lag),
    )


def episodes_by_step(steps: Steps) -> Figure:
    """Draw figures of episodes over a run's steps: the share of successes, and numbers of turns."""
    turns = {
        "longest": (LONGEST, FAINT),
        "mean": (TURNS, "#4477aa"),
        "mean of trained": (TRAINED_TURNS, "#44aa99"),
    }
    success = {"success": (SUCCESS, "#cc6677")}
    return _over_steps(
        "Episodes",
        steps,
        ("share of episodes", (-0.02, 1.02), success),
        ("turns", (0, None), turns),
    )


def learning_curves(steps: Steps) -> Figure:
    """Draw the objective over steps: loss, gradient norm, and divergences of the policy."""
    divergence = {
        "engine to learner (k3)": ("train/mismatch_k3", LAG_COLOURS[5]),
        "from the first model": ("train/reference_kl", LAG_COLOURS[0]),
    }
    return _over_steps(
        "Loss and gradient",
        steps,
        ("loss", (None, None), {"loss": ("train/loss", LAG_COLOURS[5])}),
        ("gradient norm", (0, None), {"norm": ("train/grad_norm", LAG_COLOURS[6])}),
        ("KL, nats a token", (0, None), divergence),
    )


def policy_curves(steps: Steps) -> Figure:
    """Draw the policy over steps: entropy, share of clipped tokens, and lengths of responses."""
    clipped = {
        "clipped": ("train/clip_fraction", LAG_COLOURS[4]),
        "without gradient": (CUT, LAG_COLOURS[5]),
    }
    lengths = {
        "longest": ("rollout/response_tokens_max", FAINT),
        "mean": ("rollout/response_tokens_mean", LAG_COLOURS[0]),
    }
    return _over_steps(
        "Entropy and length",
        steps,
        ("entropy, nats", (0, None), {"entropy": ("train/entropy_nats", LAG_COLOURS[2])}),
        ("share of tokens", (0, None), clipped),
        ("response tokens", (0, None), lengths),
    )


def domain_rewards(steps: Steps, domains: Sequence[str]) -> Figure:
    """Draw the mean training reward of each domain over the steps that asked it."""
    lines = _lines("reward/{}_mean", domains)
    return _over_steps("Reward by domain", steps, ("mean reward", (None, None), lines))


def adapter_rewards(steps: Steps, names: Sequence[str]) -> Figure:
    """Draw the mean rewards of each of several adapters: of training over steps, and held-out ones
    after the steps that were evaluated."""
    trained, heldout = (
        _lines(f"adapter/{{}}_{what}_mean", names) for what in ("reward", "heldout")
    )
    return _over_steps(
        "Reward by adapter",
        steps,
        ("held-out reward", (None, None), heldout),
        ("mean reward", (None, None), trained),
    )


def _lines(metric: str, names: Sequence[str]) -> Lines:
    """A line for each name, whose metric has it in the place of {}."""
    return {
        name: (metric.format(name), LAG_COLOURS[place % len(LAG_COLOURS)])
        for place, name in enumerate(names)
    }


def _over_steps(title: str, steps: Steps, *panels: Panel) -> Figure:
    """Draw metrics over the steps that have them, in panels below each other. A metric that is
    always 0, and a panel without any other, are left out."""
    told = {name for _, figures in steps for name, value in figures.items() if value}
    panels = tuple(panel for panel in panels if told & {name for name, _ in panel[2].values()})
    rows = max(1, len(panels))
    figure, all_axes = new_panels(WIDTH, 1.0 + 1.4 * rows, title, rows)
    for axes, (ylabel, ylim, lines) in zip(all_axes, panels, strict=False):
        for label, (name, colour) in lines.items():
            if name in told:
                points = [(step, figures[name]) for step, figures in steps if name in figures]
                style: Style = {"color": colour, "linewidth": 1.4, "marker": ".", "markersize": 4}
                axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.set(ylabel=ylabel, ylim=ylim)
        plain(axes)
        if len(axes.lines) > 1:
            legend(axes)
    over_steps(all_axes[-1])
    return figure
