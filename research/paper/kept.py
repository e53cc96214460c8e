"""What is kept of an experiment: its figures and steps as Parquet, a picture, a run of MLflow.

<artifact root>/paper/<experiment>/figures.parquet   ours beside published
                                   steps.parquet     every step, a row for each of its figures
                                   figures.png
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from research.paper.compared import ComparedFigure, lines_of, picture
from research.paper.experiment import Experiment, Scale
from research.paper.playing import PlayedCases

FOLDER = "paper"  # below the artifact root
MLFLOW_EXPERIMENT = "rollflow-paper"
FIGURES, STEPS, PICTURE = "figures.parquet", "steps.parquet", "figures.png"
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
Row = Mapping[str, object]


def keep(
    experiment: Experiment, figures: Mapping[str, float], played: PlayedCases, store: Store
) -> dict[str, bytes]:
    """Write an experiment's files, and return them by name."""
    lines = lines_of(figures)
    files = {
        FIGURES: _parquet([_figure_row(line) for line in lines], FIGURE_COLUMNS),
        STEPS: _parquet(list(_step_rows(experiment, played)), STEP_COLUMNS),
        PICTURE: picture(f"{experiment.name}: {experiment.about}", lines, experiment.unit),
    }
    for name, data in files.items():
        store.write(f"{FOLDER}/{experiment.name}/{name}", data)
    return files


def track(
    uri: str,
    experiment: Experiment,
    figures: Mapping[str, float],
    files: Mapping[str, bytes],
    scale: Scale,
) -> str:
    """A run of MLflow with all of it; returns its id. ConnectionError where MLflow is not."""
    tracker = RunTracker(uri)
    tracker.start(
        experiment=MLFLOW_EXPERIMENT,
        run_name=experiment.name,
        params=asdict(scale) | {"experiment": experiment.name, "machine": "simulated"},
        tags={"mlflow.source.name": "research/paper", "rollflow.paper": experiment.name},
    )
    tracker.describe(experiment.about)
    tracker.log_metrics(0, dict(_metrics(lines_of(figures))))
    for name, data in files.items():
        tracker.log_file(data, name)
    tracker.end("FINISHED")
    return tracker.run_id


def _metrics(lines: Sequence[ComparedFigure]) -> Iterator[tuple[str, float]]:
    for line in lines:
        yield line.name, line.ours
        if line.ratio is not None:
            yield f"of_published/{line.name}", line.ratio


def _figure_row(line: ComparedFigure) -> Row:
    published = line.published
    return {
        "figure": line.name,
        "ours": line.ours,
        "published": published.value if published else None,
        "ratio": line.ratio,
        "source": published.source if published else "",
    }


def _step_rows(experiment: Experiment, played: PlayedCases) -> Iterator[Row]:
    for part in experiment.parts:
        for name, case in part.cases.items():
            for number, step in enumerate(played[case], start=1):
                at = {"part": part.name, "case": name, "step": number, "kind": step.kind}
                for figure, value in step.figures.items():
                    yield at | {"figure": figure, "value": float(value)}


def _parquet(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    return sink.getvalue()
