"""Reads and draws the curves of a run that may still go on: reward, length, entropy and time.

    commits of the run, thinned ─▶ StepCurves.read ─▶ a Curve per metric ─▶ drawing: a small <svg>

Without matplotlib, whose import takes a second. Leaves out the curves of the report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from artifacts import layout
from artifacts.store import Store

MAX_POINTS = 240  # steps of a curve that are read; of more steps every second, fourth, ...
# title, unit and metric
CURVES = (
    ("reward", "mean of a step", "reward/mean"),
    ("length", "tokens an answer", "rollout/response_tokens_mean"),
    ("entropy", "nats a token", "train/entropy_nats"),
    ("time", "seconds a step", "time/step_s"),
)
WIDTH, HEIGHT = 320, 110  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 44, 308, 8, 92  # of its axes
SMOOTHED_OVER = 5  # points of a centred mean

Points = Sequence[tuple[int, float]]  # step numbers and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric of a run over its steps so far."""

    title: str
    unit: str
    points: Points  # ascending steps; those without a finite value are left out


class StepCurves:
    """Reads the curves of runs again and again; every commit is read once."""

    def __init__(self) -> None:
        # by the run's URL and beginning: the CURVES of a step, in their order
        self._known: dict[tuple[str, str], dict[int, tuple[float, ...]]] = {}

    def read(self, store: Store, created: str) -> list[Curve]:
        """The curves of a run. created: when the run began, as its manifest says. A commit that
        cannot be read is left out."""
        known = self._known.setdefault((store.url, created), {})
        steps = thinned(layout.steps_of(store.list(layout.STEPS)))
        for step in steps:
            if step not in known:
                known[step] = _values(store, step)
        return [
            Curve(
                title=title,
                unit=unit,
                points=[(step, v) for step in steps if math.isfinite(v := known[step][index])],
            )
            for index, (title, unit, _) in enumerate(CURVES)
        ]


def thinned(steps: Sequence[int]) -> list[int]:
    """At most MAX_POINTS of these steps and the last one: multiples of a power of two, so that a
    run that goes on keeps the points that were read."""
    stride = 1
    while len(steps) > MAX_POINTS * stride:
        stride *= 2
    return [step for step in steps if step % stride == 0 or step == steps[-1]]


def _values(store: Store, step: int) -> tuple[float, ...]:
    try:
        metrics = json.loads(store.checked(layout.step_file(layout.STEPS, step)))["metrics"]
        found = [metrics.get(metric) for _, _, metric in CURVES]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = [None] * len(CURVES)
    return tuple(math.nan if value is None else float(value) for value in found)


def drawing(curve: Curve, heldout: Points = ()) -> Markup:
    """Draw a curve as an <svg> element: faint as measured, strong as smoothed. Colours are the
    page's CSS variables. heldout: rewards of evaluations, as dots."""
    values = [value for _, value in (*curve.points, *heldout)]
    if not values:
        return Markup('<p class="faint">no step yet</p>')
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    first, last = 0, max(step for step, _ in (*curve.points, *heldout))

    def place(step: int, value: float) -> str:
        x = LEFT + (RIGHT - LEFT) * (step - first) / max(1, last - first)
        y = BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    def line(points: Points, kind: str) -> str:
        return f'<polyline class="{kind}" points="{" ".join(place(*p) for p in points)}"/>'

    dots = (place(*point).split(",") for point in heldout)
    parts = [
        f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
        f'<text x="{LEFT - 4}" y="{TOP + 4}" text-anchor="end">{high:.2g}</text>',
        f'<text x="{LEFT - 4}" y="{BOTTOM}" text-anchor="end">{low:.2g}</text>',
        f'<text x="{RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step {last}</text>',
        line(curve.points, "raw"),
        line(_smoothed(curve.points), "smooth"),
        *(f'<circle class="heldout" cx="{x}" cy="{y}" r="3.5"/>' for x, y in dots),
    ]
    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{curve.title}, {curve.unit}"'
    return Markup(f"<svg {head}>{''.join(parts)}</svg>")  # numbers and words of ours alone


def _smoothed(points: Points) -> list[tuple[int, float]]:
    half = SMOOTHED_OVER // 2
    windows = [points[max(0, i - half) : i + half + 1] for i in range(len(points))]
    means = [sum(value for _, value in window) / len(window) for window in windows]
    return [(step, mean) for (step, _), mean in zip(points, means, strict=True)]
