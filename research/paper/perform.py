"""An experiment from its played cases to what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.reports.mlflow_client import sqlite_uri
from artifacts.store import Store
from research.paper.experiment import Experiment, Scale
from research.paper.kept import keep, track
from research.paper.playing import PlayedCases

DATABASE = "mlflow.db"  # beside a local artifact root's runs, as of training runs


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlace:
    """Where it is kept."""

    artifact_root: str  # folder or URL
    tracks: bool  # in MLflow, too

    @property
    def tracking_uri(self) -> str:
        """MLflow's SQLite file of the artifact root. ValueError where that is no folder."""
        store = Store.open(self.artifact_root)
        if not store.is_local:
            raise ValueError(
                f"an artifact root with MLflow must be a folder, got {self.artifact_root}; choose"
                " one, or add --no-mlflow"
            )
        return sqlite_uri(Path(store.url).resolve() / DATABASE)


def figures_of(
    experiment: Experiment, played: PlayedCases, place: OutputPlace, scale: Scale
) -> dict[str, float]:
    """Its figures, once they are kept."""
    figures = experiment.figures(played)
    files = keep(experiment, figures, played, Store.open(place.artifact_root))
    if place.tracks:
        track(place.tracking_uri, experiment, figures, files, scale)
    return figures
