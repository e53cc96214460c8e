"""Our figures beside the published ones: tables, a picture, and the files of an experiment.

<artifact root>/paper/<experiment>/figures.parquet   ours beside published
                                   steps.parquet     every step, a row for each of its figures
                                   figures.png
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import wrap

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, INK, legend, plain, png
from artifacts.store import Store
from research.ablations.ablation_figures import markdown_table
from research.paper.experiment import Experiment, PlayedCases
from research.paper.published import FITTED, PUBLISHED, PublishedFigure

FOLDER = "paper"  # below the artifact root
FIGURE_COLUMNS = pa.schema(
    [
        ("figure", pa.string()),
        ("ours", pa.float64()),
        ("published", pa.float64()),
        ("ratio", pa.float64()),
        ("source", pa.string()),
    ]
)
STEP_COLUMNS = pa.schema(
    [
        ("part", pa.string()),
        ("case", pa.string()),
        ("step", pa.int32()),
        ("kind", pa.string()),
        ("figure", pa.string()),
        ("value", pa.float64()),
    ]
)
HEAD = ("figure", "ours", "published", "ratio", "source")
PAGE_HEAD = ("figure", "ours", "published", "error", "source")
MOST_NAMED = 20  # figures without a counterpart that a page names
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"  # of a page that has them
BAR = 0.36  # of the distance of two figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A figure of ours, and its counterpart where the paper's is known."""

    name: str
    ours: float
    published: PublishedFigure | None

    @property
    def is_fitted(self) -> bool:
        """True if a constant of the simulator was fitted to the published one."""
        return self.name.startswith(FITTED)

    @property
    def ratio(self) -> float | None:
        """Ours over the published one."""
        return self.ours / self.published.value if self.published else None

    @property
    def error(self) -> float | None:
        """Ours less the published one, over the latter."""
        return self.ratio - 1 if self.ratio is not None else None

    @property
    def page_cells(self) -> tuple[str, ...]:
        """The row of a table under `PAGE_HEAD`; empty where nothing was published."""
        if self.published is None or self.error is None:
            return self.name, number(self.ours), "", "", ""
        published = number(self.published.value)
        source = f"{self.published.source}{' (fitted)' * self.is_fitted}"
        return self.name, number(self.ours), published, f"{self.error:+.0%}", source

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table under `HEAD`; empty where nothing was published."""
        if self.published is None or self.ratio is None:
            return self.name, number(self.ours), "", "", ""
        published = number(self.published.value)
        return self.name, number(self.ours), published, f"{self.ratio:.2f}", self.published.source


def lines_of(figures: Mapping[str, float]) -> list[ComparedFigure]:
    """The figures beside their published counterparts, in their order."""
    return [
        ComparedFigure(name=name, ours=ours, published=PUBLISHED.get(name))
        for name, ours in figures.items()
    ]


def number(value: float) -> str:
    """Three significant digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table_of(lines: Iterable[ComparedFigure]) -> Table:
    table = Table(*HEAD)
    for line in lines:
        table.add_row(*line.cells)
    return table


def markdown_of(experiment: Experiment, figures: Mapping[str, float]) -> str:
    """The figures of an experiment, for a page: a table of those whose counterpart is known, and
    the others in a paragraph."""
    lines = lines_of(figures)
    units = ", ".join(dict.fromkeys(unit_of(line.name, experiment.unit) for line in lines))
    about = f"**{experiment.name}**: {experiment.about} ({units})."
    paragraphs = ["\n".join(wrap(about, 100))]
    if rows := [line.page_cells for line in lines if line.published is not None]:
        paragraphs.append(markdown_table(PAGE_HEAD, rows))
    start = f"{experiment.name}/"
    others = [
        f"{line.name.removeprefix(start)} {number(line.ours)}"
        for line in lines
        if line.published is None
    ]
    if len(others) > MOST_NAMED:
        paragraphs.append(
            f"No published figure is known of {len(others)} others; `--json` has them."
        )
    elif others:
        said = f"No published figure is known of: {'; '.join(others)}."
        paragraphs.append("\n".join(wrap(said, 100)))
    return "\n\n".join(paragraphs) + "\n"


def errors_in_words(figures: Mapping[str, float]) -> str:
    """A sentence with the median and the largest error of the figures whose counterpart is known,
    and with those of the figures that nothing was fitted to. Raises StatisticsError without one."""
    known = [line for line in lines_of(figures) if line.error is not None]
    worst = max(known, key=lambda line: abs(line.error or 0.0))
    apart = [line for line in known if not line.is_fitted]
    return (
        f"{len(known)} figures have a counterpart: the error is {_middle(known):.0%} in the median,"
        f" at most\n{abs(worst.error or 0.0):.0%} ({worst.name}). It is {_middle(apart):.0%} over"
        f" the {len(apart)} that no constant was fitted to."
    )


def _middle(lines: Sequence[ComparedFigure]) -> float:
    return median(abs(line.error or 0.0) for line in lines)


def with_figures(page: str, told: str) -> str:
    """Returns a page with this text between its marks in place of what is there; the text alone for
    a page without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{told}\n{end}{after}" if begin and end else told


def unit_of(name: str, otherwise: str) -> str:
    """The unit of a figure by its name; else the unit of its experiment."""
    if "/best_ratio/" in name:
        return "steps"
    endings = {"_s": "seconds", "_share": "share", "max_tokens": "tokens", "preemptions": "count"}
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), otherwise)


def picture(title: str, lines: Sequence[ComparedFigure], unit: str) -> bytes:
    """A PNG with a bar for each figure, its published one beside it, and a panel for each unit."""
    panels: dict[str, list[ComparedFigure]] = defaultdict(list)
    for line in lines:
        panels[unit_of(line.name, unit)].append(line)
    longest = max(len(panel) for panel in panels.values())
    figure = Figure(
        figsize=(7.0 * len(panels), 1.2 + 0.3 * longest), dpi=DOTS_PER_INCH, layout="constrained"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for pane, (counted, panel) in zip(axes, panels.items(), strict=True):
        _draw(pane, panel, counted)
    return png(figure)


def _draw(axes: Axes, lines: Sequence[ComparedFigure], unit: str) -> None:
    places = range(len(lines))
    axes.barh(
        [place - BAR / 2 for place in places],
        [line.ours for line in lines],
        height=BAR,
        color="#4477aa",
        label="ours, simulated",
    )
    known = [(place, line.published.value) for place, line in enumerate(lines) if line.published]
    if known:
        below, values = zip(*known, strict=True)
        axes.barh(
            [place + BAR / 2 for place in below],
            values,
            height=BAR,
            color=FAINT,
            label="published",
        )
    axes.set_yticks(list(places), [line.name for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    plain(axes)
    axes.tick_params(labelsize=7)
    legend(axes)


def keep(
    experiment: Experiment, figures: Mapping[str, float], played: PlayedCases, store: Store
) -> None:
    """Write the files of an experiment."""
    lines = lines_of(figures)
    rows = [
        {
            "figure": line.name,
            "ours": line.ours,
            "published": line.published.value if line.published else None,
            "ratio": line.ratio,
            "source": line.published.source if line.published else "",
        }
        for line in lines
    ]
    files = {
        "figures.parquet": _parquet(rows, FIGURE_COLUMNS),
        "steps.parquet": _parquet(list(_step_rows(experiment, played)), STEP_COLUMNS),
        "figures.png": picture(f"{experiment.name}: {experiment.about}", lines, experiment.unit),
    }
    for name, data in files.items():
        store.write(f"{FOLDER}/{experiment.name}/{name}", data)


def _step_rows(experiment: Experiment, played: PlayedCases) -> Iterator[Mapping[str, object]]:
    for part in experiment.parts:
        for name, case in part.cases.items():
            for number, step in enumerate(played[case], start=1):
                at = {"part": part.name, "case": name, "step": number, "kind": step.kind}
                for figure, value in step.figures.items():
                    yield at | {"figure": figure, "value": float(value)}


def _parquet(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    return sink.getvalue()
