"""The papers' experiments as Prefect flows: one run, and below it one for each experiment.

paper-experiments ─▶ paper-fig11 ─▶ play-cases ─▶ keep-figures
                  └▶ paper-table2 ─▶ ...
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect import flow, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from pydantic import BaseModel, ConfigDict, Field

from flows.experiments.paper.compared import HEAD, lines_of
from flows.experiments.paper.experiment import Experiment, Scale
from flows.experiments.paper.perform import Place, figures_of
from flows.experiments.paper.playing import PlayedCases, play_cases
from flows.experiments.paper.registry import chosen


class PaperConfig(BaseModel):
    """Which experiments are played, and where they are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = Field(
        (),
        description=(
            "Experiments (fig11), parts of them (fig11/8k) or figures; none means all of them."
        ),
    )
    periods: int = Field(
        Scale().periods, ge=1, description="Periods of short and long rounds that a run has."
    )
    seed: int = Field(0, ge=0, description="Seed of lengths, verdicts and traces.")
    num_processes: int = Field(
        os.cpu_count() or 1, ge=1, description="Simulations that are played at the same time."
    )
    artifact_root: str = Field(
        "runs", description="Folder or URL below which paper/ gets Parquet files and pictures."
    )
    mlflow: bool = Field(
        True, description="Whether each experiment is a run of MLflow, beside the artifact root."
    )

    @property
    def scale(self) -> Scale:
        return Scale(periods=self.periods, seed=self.seed)

    @property
    def place(self) -> Place:
        return Place(artifact_root=self.artifact_root, tracks=self.mlflow)


@flow(name="paper-experiments", description=__doc__)
async def paper_experiments(config: PaperConfig) -> dict[str, float]:
    """Our figures by name. ValueError for a name that there is not."""
    figures: dict[str, float] = {}
    for experiment in chosen(config.names, config.scale):
        figures |= await paper_experiment(experiment.name, config)
    return figures


@flow(name="paper-experiment", flow_run_name="paper-{name}")
async def paper_experiment(name: str, config: PaperConfig) -> dict[str, float]:
    """Its figures, with a table of them beside the published ones among the run's artifacts."""
    every = chosen(config.names, config.scale)
    experiment = next(experiment for experiment in every if experiment.name == name)
    played = play(experiment.cases, config.num_processes)
    figures = keep_figures(experiment, played, config)
    rows = [dict(zip(HEAD, line.cells, strict=True)) for line in lines_of(figures)]
    await acreate_table_artifact(rows, key=f"paper-{name}", description=experiment.about)
    return figures


@task(name="play-cases", cache_policy=NO_CACHE)
def play(cases: Sequence[object], num_processes: int) -> PlayedCases:
    """Every case once."""
    return play_cases(cases, num_processes, get_run_logger().info)  # type: ignore[arg-type]


@task(name="keep-figures", cache_policy=NO_CACHE)
def keep_figures(
    experiment: Experiment, played: PlayedCases, config: PaperConfig
) -> dict[str, float]:
    """Parquet, picture, MLflow."""
    return figures_of(experiment, played, config.place, config.scale)
