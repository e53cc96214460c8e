"""The picture of a throughput profile, from numbers to PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

COLOURS = ("#4477aa", "#cc6677", "#44aa99", "#eecc66", "#882255", "#88ccee", "#117733", "#999933")
INK, FAINT, GRID = "#222222", "#8a8f98", "#e6e8eb"


def throughput_plot(curves: Mapping[str, Sequence[tuple[int, float, float]]], title: str) -> bytes:
    """Prefill and decode tokens per second by batch, a line per curve of (batch, prefill,
    decode)."""
    figure = Figure(figsize=(9.0, 4.0), dpi=130, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    panels = figure.subplots(1, 2)
    measured = sorted({point[0] for points in curves.values() for point in points})
    for column, (axes, name) in enumerate(zip(panels, ("prefill", "decode"), strict=True), start=1):
        for number, (label, points) in enumerate(curves.items()):
            batches, rates = [point[0] for point in points], [point[column] for point in points]
            axes.plot(
                batches,
                rates,
                marker="o",
                markersize=4,
                color=COLOURS[number % len(COLOURS)],
                label=label,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(measured, labels=[str(batch) for batch in measured])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="responses in the batch", ylabel=f"{name} tokens/s")
        axes.grid(color=GRID, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    panels[1].legend(frameon=False, fontsize=9)
    sink = io.BytesIO()
    figure.savefig(sink, format="png")
    return sink.getvalue()
