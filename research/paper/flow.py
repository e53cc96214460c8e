"""The papers' experiments as Prefect flows: one run, and below it one for each experiment.

paper-experiments ─▶ paper-fig11 ─▶ play-cases ─▶ keep-figures           simulated
                  ├▶ paper-table2 ─▶ ...
                  └▶ paper-real-eta ─▶ run-variants                      real engines, by `devices`

An experiment that has a counterpart on the devices is run there, every other one is simulated; the
log says which.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from pydantic import BaseModel, ConfigDict, Field

from research.paper.compared import HEAD, lines_of
from research.paper.counterparts import (
    POLYRL,
    CourseOrder,
    Devices,
    Order,
    Real,
    Wanted,
    chosen_devices,
    count_gpus,
    course_order,
    has_counterpart,
    orders,
)
from research.paper.experiment import Experiment, Scale
from research.paper.perform import OutputPlace, figures_of
from research.paper.playing import PlayedCases, play_cases
from research.paper.real import perform
from research.paper.registry import chosen


class PaperConfig(BaseModel):
    """Which experiments are played, and where they are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = Field(
        (),
        description=(
            "Experiments (fig11), parts of them (fig11/8k) or figures; none means all of them."
        ),
    )
    devices: Devices = Field(
        "auto",
        description=(
            "Where they are run: 'gpus' and 'cores' compare the same variants on real engines, as"
            " far as an experiment has them; 'simulated' plays the papers' own machines; 'auto'"
            " takes GPUs where there are some, else simulated machines."
        ),
    )
    preset: str = Field(
        "",
        description=(
            "What real runs change; empty takes one for the devices. Those for GPUs need model.path"
            " and task.path among the settings."
        ),
    )
    settings: tuple[str, ...] = Field(
        (), description="FIELD=VALUE over the preset of every real run."
    )
    repeats: int = Field(1, ge=1, description="Real runs of each variant, each with its own seed.")
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
    def wanted(self) -> Wanted:
        """ValueError where real runs cannot be kept."""
        if "://" in self.artifact_root:
            raise ValueError(
                f"real runs need an artifact_root that is a folder, got {self.artifact_root};"
                " choose one, or take devices=simulated"
            )
        return Wanted(
            preset=self.preset,
            settings=self.settings,
            periods=self.periods,
            repeats=self.repeats,
            root=Path(self.artifact_root) / "paper-real",
        )

    @property
    def place(self) -> OutputPlace:
        return OutputPlace(artifact_root=self.artifact_root, tracks=self.mlflow)


@flow(name="paper-experiments", description=__doc__)
async def paper_experiments(config: PaperConfig) -> dict[str, float]:
    """Our figures by name, those of real engines below `real/`. ValueError for a name that there is
    not, and for devices."""
    names = [experiment.name for experiment in chosen(config.names, config.scale)]
    num_gpus = count_gpus() if config.devices in ("auto", "gpus") else 0
    devices = chosen_devices(config.devices, num_gpus)
    wanted = real_orders(names, devices, num_gpus, config) if devices else []
    figures: dict[str, float] = {}
    for name in names:
        if not (devices and has_counterpart(name, devices)):
            get_run_logger().info("experiment=%s devices=simulated", name)
            figures |= await paper_experiment(name, config)
    for order in wanted:
        figures |= await paper_real(order.out.name, order)
    return figures


def real_orders(
    names: Sequence[str], devices: Real, num_gpus: int, config: PaperConfig
) -> list[Order | CourseOrder]:
    """What is to be run; the log has what cannot be."""
    wanted = config.wanted
    real = [name for name in names if has_counterpart(name, devices)]
    compared = orders(real, devices, num_gpus, wanted)
    for order in compared:
        for variant, reason in order.left_out.items():
            get_run_logger().warning("variant=%s is left out: %s", variant, reason)
    return [*compared, *([course_order(wanted)] if POLYRL in real else [])]


@flow(name="paper-real", flow_run_name="paper-real-{name}", validate_parameters=False)
async def paper_real(name: str, order: Order | CourseOrder) -> dict[str, float]:
    """Figures of real engines, with a table of them among the run's artifacts."""
    figures = await run_variants(order)
    rows = [{"figure": figure, "value": value} for figure, value in figures.items()]
    await acreate_table_artifact(
        rows, key=f"paper-real-{name}".lower(), description=f"Real engines, {order.preset}"
    )
    return figures


@task(name="run-variants", cache_policy=NO_CACHE)
async def run_variants(order: Order | CourseOrder) -> dict[str, float]:
    """All runs of it, one after the other, each with a Prefect server of its own."""
    return await perform(order, get_run_logger().info)


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
