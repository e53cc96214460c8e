"""Configuration of a run's outputs: where records, checkpoints and metrics are stored."""

from __future__ import annotations

import os
from typing import Self

from pydantic import Field, field_validator, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.reports.trackers import TrackerName
from artifacts.urls import Location, TrackingUri


class KeepConfig(FrozenConfig):
    """Which outputs a run writes, and where."""

    artifact_root: Location = Field(
        "runs",
        description="Directory or fsspec URL (s3://...) under which every run gets its folder.",
    )
    tracking_uri: TrackingUri = Field(
        "",
        description=(
            "MLflow tracking URI, without a password; empty uses a SQLite file beside a local"
            " artifact root."
        ),
    )
    experiment: str = Field(
        "rollflow", min_length=1, description="MLflow experiment that the run appears in."
    )
    trackers: tuple[TrackerName, ...] = Field(
        (),
        description=(
            "Trackers that get the numbers of MLflow, too, as a list or as words with commas:"
            " wandb, tensorboard, swanlab, trackio; each needs its own library."
        ),
    )
    log_model: bool = Field(
        False,
        description=(
            "Whether the trained model is copied into MLflow, as a model of its run, when the run"
            " is over."
        ),
    )
    registered_model: str = Field(
        "",
        pattern=r"^[^/:'\"]*$",
        description=(
            "Name under which the logged model is registered in MLflow, each run's as a new"
            " version; empty registers nothing. Needs log_model."
        ),
    )
    report: bool = Field(
        True,
        description=(
            "Whether the report has its page and pictures, which take seconds of a core; without"
            " them it is a summary and figures."
        ),
    )
    checkpoint_every_steps: int = Field(
        10,
        ge=1,
        description=(
            "Steps between learner checkpoints; a resumed run replays training since the last one."
        ),
    )
    checkpoints: int = Field(2, ge=1, description="How many checkpoints are kept.")
    model_cache: Location = Field(
        ".cache/models",
        description="Directory in which models that are converted or built here are kept.",
    )
    weights_dir: Location = Field(
        "/dev/shm",
        description=(
            "Directory for weights on their way to the engines and checkpoints on theirs to a"
            " remote root; shared by all hosts."
        ),
    )

    @field_validator("trackers", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        """Read "wandb,tensorboard" as a list, so that --set needs no quotes."""
        return [name.strip() for name in given.split(",")] if isinstance(given, str) else given

    @field_validator("model_cache", "weights_dir")
    @classmethod
    def _expanded(cls, folder: str) -> str:
        """Expand "~", which a shell does not do in --set keep.model_cache=~/models."""
        return os.path.expanduser(folder)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.registered_model and not self.log_model:
            raise ValueError(
                "registered_model needs log_model, got registered_model"
                f" {self.registered_model!r} without it; set keep.log_model=true, or leave the"
                " name out"
            )
        return self
