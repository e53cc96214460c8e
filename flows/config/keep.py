"""Where a run's records, checkpoints and metrics go."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class KeepConfig(BaseModel):
    """What is written, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact_root: str = Field(
        "runs",
        description="Directory or fsspec URL (s3://...) under which every run gets its folder.",
    )
    tracking_uri: str = Field(
        "",
        description="MLflow tracking URI; empty uses a SQLite file beside a local artifact root.",
    )
    experiment: str = Field(
        "rollflow", min_length=1, description="MLflow experiment that the run appears in."
    )
    checkpoint_every_steps: int = Field(
        10,
        ge=1,
        description=(
            "Steps between learner checkpoints; a resumed run replays training since the last one."
        ),
    )
    checkpoints: int = Field(2, ge=1, description="How many checkpoints are kept.")
    model_cache: str = Field(
        ".cache/models",
        description="Directory in which models that are converted or built here are kept.",
    )
    weights_dir: str = Field(
        "/dev/shm",
        description=(
            "Directory for weights on their way to the engines and checkpoints on theirs to a"
            " remote root; shared by all hosts."
        ),
    )
