"""Figures, axes and legends of the report's pictures, and their encoding as PNG and SVG.

Without pyplot: no window, no global state, safe in any thread. Leaves out the pictures themselves.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

DOTS_PER_INCH = 130
INK, FAINT, GRID, LANE, PAPER = "#222222", "#8a8f98", "#e6e8eb", "#f4f5f7", "#ffffff"
# CSS variables of the colours that depend on whether the page is light or dark
PAGE_COLOURS = {INK: "--ink", FAINT: "--faint", GRID: "--grid", LANE: "--lane", PAPER: "--paper"}
Style = Mapping[str, Any]  # Any: matplotlib's keywords
TITLE: Style = {"fontsize": 12, "fontweight": "bold", "color": INK}

# element names within a drawing are hashes; without a fixed salt they would be random
matplotlib.rcParams["svg.hashsalt"] = "rollflow"
SVG_METADATA = ("Date", "Creator", "Format", "Type")  # left out: equal numbers draw equal pictures


def png(figure: Figure) -> bytes:
    """Encode a figure as PNG bytes, on a white background."""
    sink = io.BytesIO()
    figure.savefig(sink, format="png")
    return sink.getvalue()


def svg(figure: Figure) -> str:
    """Encode a figure as an <svg> element for a page: transparent, its colours replaced by the CSS
    variables of PAGE_COLOURS, so that one picture serves a light page and a dark one."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg", transparent=True, metadata=dict.fromkeys(SVG_METADATA))
    figure.set_layout_engine("none")  # drawn again, it stays as it was laid out, for half the time
    drawing = sink.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    for colour, variable in PAGE_COLOURS.items():
        drawing = drawing.replace(colour, f"var({variable})")
    return drawing


def new_figure(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Make a figure of this size in inches with one titled pair of axes."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", **TITLE)
    plain(axes)
    return figure, axes


def new_panels(
    width: float,
    height: float,
    title: str,
    rows: int = 1,
    columns: int = 1,
    height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Make a titled figure of this size in inches with panels, row by row; those of one column
    share their horizontal axis."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", **TITLE)
    panels = figure.subplots(
        rows, columns, squeeze=False, sharex="col", height_ratios=height_ratios
    )
    return figure, list(panels.flat)


def plain(axes: Axes) -> None:
    """Style axes plainly: lines only at the left and bottom, and a faint grid behind the data."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)


def over_steps(axes: Axes) -> None:
    """Let the horizontal axis count steps."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend(axes: Axes) -> None:
    """Add a legend without a frame, at the place within the axes that hides least."""
    axes.legend(frameon=False, fontsize=9)


def legend_below(figure: Figure, handles: Sequence[object]) -> None:
    """Add a legend below the figure's axes, where it hides nothing."""
    figure.legend(
        handles=list(handles), loc="outside lower left", ncols=4, frameon=False, fontsize=9
    )
