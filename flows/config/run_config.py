"""RunConfig: the only parameter of the training flow, composed of the configs that are defined
beside the classes that they configure.

`preset` names a complete configuration of `flows.config.presets`; every other given field overrides
that preset's value, at any depth. Without `preset`, the environment variable ROLLFLOW_PRESET names
the preset: a deployment sets it, so that its runs may give only the fields that they change.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from artifacts.datasets.registry import TaskConfig
from artifacts.fixed_fields import reading_settings
from artifacts.models.registry import ModelConfig
from artifacts.prices import PriceConfig
from artifacts.reports.mlflow_client import sqlite_uri
from artifacts.urls import Location, hidden, without_secrets
from flows.config.consistency import check_parts
from flows.config.earlier_settings import with_todays_names
from flows.config.evaluation import EvaluationConfig
from flows.config.keep import KeepConfig
from flows.config.limits import fill_in_limits
from flows.config.overlay import overlay
from flows.config.prefect_form import leave_to_preset
from flows.config.presets import preset_values
from tasks.cluster.devices import ClusterConfig
from tasks.elastic.config import ElasticConfig
from tasks.engines.base import SamplingConfig
from tasks.engines.registry import EngineConfig
from tasks.environments.config import EpisodeConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.weight_check import WeightCheckConfig
from tasks.metrics.monitors import MonitorConfig
from tasks.rewards.registry import RewardConfig
from tasks.run.prompts import UnfitPrompts
from tasks.run.run_context import DeadlineConfig
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.registry import SchedulingConfig
from tasks.scheduling.seeding import SeedingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig

PRESET_VARIABLE = "ROLLFLOW_PRESET"


class RunConfig(BaseModel):
    """The configuration of one training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str = Field(
        "smollm2",
        description=(
            "Named configuration that the other fields override; empty: the deployment's own, else"
            " smollm2."
        ),
    )
    run_name: str = Field(
        "",
        max_length=60,
        pattern=r"^([a-zA-Z0-9][a-zA-Z0-9._-]*)?$",
        description=(
            "Name of the run in Prefect and MLflow; empty derives one from preset and time."
        ),
    )
    resume: Location = Field(
        "",
        description=(
            "Run id to go on with under its kept configuration; beside it only what may stand in a"
            " run's way can be changed."
        ),
    )
    seed: int = Field(0, ge=0, description="Every random choice of the run derives from it.")
    num_steps: int = Field(
        ...,
        ge=1,
        description=(
            "Steps, each of learner.mini_batches * learner.passes optimizer updates; draining the"
            " long-prompt queue may add a few."
        ),
    )
    model: ModelConfig = Field(..., description="The model that is trained.")
    task: TaskConfig = Field(..., description="Where the prompts come from.")
    rewards: Mapping[str, RewardConfig] = Field(
        ..., description="Reward by domain of the task; '*' serves every other domain."
    )
    environments: Mapping[str, EnvironmentConfig] = Field(
        default_factory=dict,
        description=(
            "Environment by domain of the task, whose rows are then seeds of episodes; the other"
            " domains are answered in one turn."
        ),
    )
    episodes: EpisodeConfig = Field(
        default_factory=EpisodeConfig,
        description="Bounds of episodes, and the processes that environments step in.",
    )
    unfit_prompts: UnfitPrompts = Field(
        "refuse",
        description=(
            "What to do about prompts that are too long for the engines, that the model's template"
            " refuses, or whose reward can pay no answer: say so before anything starts, or pass"
            " them over and count them."
        ),
    )
    batch: BatchConfig = Field(..., description="Prompts and responses of a step.")
    scheduling: SchedulingConfig = Field(..., description="How the rounds of a step are scheduled.")
    stream_trainer: StreamTrainerConfig = Field(
        default_factory=StreamTrainerConfig,
        description="Training that begins on freed devices while the round still runs.",
    )
    seeding: SeedingConfig = Field(
        default_factory=SeedingConfig,
        description=(
            "How long the run's own devices generate in rounds that elastic workers take part in."
        ),
    )
    balancing: BalancingConfig = Field(
        default_factory=BalancingConfig,
        description="How responses are shared out among engines of the run and elastic workers.",
    )
    sampling: SamplingConfig = Field(..., description="How responses are sampled.")
    engine: EngineConfig = Field(..., description="The rollout engines.")
    planner: PlannerConfig = Field(
        default_factory=PlannerConfig,
        description="The choice of the engines' tensor-parallel size.",
    )
    learner: LearnerConfig = Field(..., description="The training of the policy.")
    cluster: ClusterConfig = Field(
        ..., description="Devices, their roles, and where the workers run."
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="Held-out evaluation."
    )
    elastic: ElasticConfig = Field(
        default_factory=ElasticConfig,
        description="Engines that join and leave while the run goes on.",
    )
    weight_check: WeightCheckConfig = Field(
        default_factory=WeightCheckConfig,
        description="The comparison of engines with the learner after every publication.",
    )
    monitors: MonitorConfig = Field(
        default_factory=MonitorConfig,
        description="Limits on the figures of steps beyond which the run warns.",
    )
    prices: PriceConfig = Field(
        default_factory=PriceConfig,
        description="What a device-hour costs, for tokens per dollar.",
    )
    reward_workers: int = Field(
        2,
        ge=1,
        description=(
            "Responses scored side by side; one more for a kind of reward that had to wait for"
            " others."
        ),
    )
    max_recoveries: int = Field(
        3, ge=0, description="How often one step may be tried again after a worker was lost."
    )
    max_infra_fraction: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of a round's responses without a verdict above which the run stops.",
    )
    deadlines: DeadlineConfig = Field(
        default_factory=DeadlineConfig, description="How long a run waits for anything."
    )
    keep: KeepConfig = Field(
        default_factory=KeepConfig, description="Where records, checkpoints and metrics go."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _over_preset(
        cls,
        given: Any,  # Any: whatever the caller gave
        handler: ModelWrapValidatorHandler[Self],
    ) -> Self:
        """Lay the given values over the preset's. Fields that the preset filled in do not count as
        set, so that a resumed run changes only fields that were given beside `resume`."""
        if not isinstance(given, Mapping):
            return handler(given)
        try:
            given = with_todays_names(given)
            with reading_settings():
                config = handler(_over_its_preset(given))
        except ValueError as error:
            raise _without_secrets(error, given) from None
        mark_as_set(config, given)
        return config

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The JSON schema, adapted to Prefect's form."""
        reference = handler(core)
        leave_to_preset(reference, handler)
        return reference

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        _check_finite(self.model_dump())
        fill_in_limits(self)
        if not self.resume:  # a resume's values must fit the run's kept ones, not known here
            check_parts(self)
        return self

    def local_root(self) -> Path | None:
        """The artifact root as an absolute local path, the same that `Store.open` uses; None if the
        root is a URL."""
        root = self.keep.artifact_root
        return None if "://" in root else Path(root).expanduser().resolve()

    def tracking_uri(self) -> str:
        """MLflow's tracking URI: the configured one, or a SQLite file in a local artifact root.
        Raises ValueError if neither is possible."""
        root = self.local_root()
        if self.keep.tracking_uri:
            return self.keep.tracking_uri
        if root is None:
            raise ValueError(
                "keep.tracking_uri must be given when keep.artifact_root is a URL"
                f" ({self.keep.artifact_root}); set it to an MLflow server or to"
                " sqlite:///path/mlflow.db"
            )
        return sqlite_uri(root / "mlflow.db")


def _over_its_preset(given: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: parsed JSON
    preset = str(given.get("preset") or os.environ.get(PRESET_VARIABLE, "smollm2"))
    kinds = {  # so that a setting of the engine or of the loss need not name its kind
        "engine": {"kind": "vllm"},
        "learner": LearnerConfig().model_dump(mode="json"),
    }
    return overlay(overlay(kinds, preset_values(preset)), {**given, "preset": preset})


def _without_secrets(error: ValueError, given: object) -> ValidationError:
    """Return the same validation errors with secrets removed from messages, locations and inputs,
    because errors are shown in many places: Prefect logs those of a deployment."""
    if not isinstance(error, ValidationError):
        fault = PydanticCustomError("value_error", without_secrets(str(error)))
        return ValidationError.from_exception_data(
            RunConfig.__name__, [InitErrorDetails(type=fault, input=hidden(given))]
        )
    faults = [
        InitErrorDetails(
            type=PydanticCustomError(fault["type"], without_secrets(fault["msg"])),
            loc=tuple(hidden(fault["loc"])),
            input=hidden(fault["input"]),
        )
        for fault in error.errors()
    ]
    return ValidationError.from_exception_data(error.title, faults)


def _check_finite(values: Mapping[str, Any], place: str = "") -> None:  # Any: values of fields
    """Raise ValueError for an infinity or not-a-number: a manifest is JSON, which has neither, so
    that the value could not be read back."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_finite(value, f"{place}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place}{name} must be finite, got {value}; give a large number")


def mark_as_set(model: BaseModel, given: Mapping[str, Any]) -> None:  # Any: parsed JSON
    """Restrict `model_fields_set`, at every depth, to the fields in `given`: fields that a preset
    or a manifest filled in do not count as set."""
    model.__pydantic_fields_set__.intersection_update(given)
    for name in type(model).model_fields:
        below, value = getattr(model, name), given.get(name, {})
        if isinstance(below, BaseModel) and isinstance(value, Mapping):
            mark_as_set(below, value)
