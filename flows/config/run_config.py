"""RunConfig: the one parameter of every flow, composed of the configs that live beside what they
configure.

`preset` names a complete configuration of `flows.config.presets`; every other field given overrides
that preset's value, at any depth. Where none is named the environment variable ROLLFLOW_PRESET
counts: a deployment sets it, so that a run of it may give any other field alone.
"""

from __future__ import annotations

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
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from artifacts.datasets.choice import TaskConfig
from artifacts.models.choice import ModelConfig
from flows.config.overlay import overlay
from flows.config.presets import preset_values
from tasks.cluster.devices import ClusterConfig, device_map, engine_members
from tasks.deadlines import DeadlineConfig
from tasks.engines.sampling import SamplingConfig
from tasks.engines.vllm.engine import EngineConfig
from tasks.fitting import UnfitPrompts
from tasks.learner.overlong import SoftPunishment
from tasks.learner.trainer import LearnerConfig
from tasks.learner.weight_sync import GateConfig
from tasks.rewards.judges.reward import judge_engine_of
from tasks.rewards.registry import RewardConfig
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.rounds import BatchConfig, SchedulingConfig, SyncConfig
from tasks.scheduling.stream_training import StreamTrainerConfig

PRESET_VARIABLE = "ROLLFLOW_PRESET"


class EvaluationConfig(BaseModel):
    """Held-out prompts, asked before the first step and after the last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_prompts: int = Field(
        64, ge=2, description="Held-out prompts to ask, the same ones each time."
    )
    responses_per_prompt: int = Field(
        4,
        ge=1,
        description="Responses sampled for each held-out prompt; their mean is the prompt's score.",
    )
    every_steps: int = Field(
        0,
        ge=0,
        description=(
            "Evaluate after every so many steps as well; 0 means only before and after the run."
        ),
    )


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


class RunConfig(BaseModel):
    """One training run."""

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
    resume: str = Field(
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
            "Optimizer updates of the policy; draining the long-prompt queue may add a few."
        ),
    )
    model: ModelConfig = Field(..., description="The model that is trained.")
    task: TaskConfig = Field(..., description="Where the prompts come from.")
    rewards: Mapping[str, RewardConfig] = Field(
        ..., description="Reward by domain of the task; '*' serves every other domain."
    )
    unfit_prompts: UnfitPrompts = Field(
        "refuse",
        description=(
            "What to do about prompts that are too long for the engines, or that the model's"
            " template refuses: say so before anything starts, or pass them over and count them."
        ),
    )
    batch: BatchConfig = Field(..., description="Prompts and responses of a step.")
    scheduling: SchedulingConfig = Field(..., description="How the rounds of a step are scheduled.")
    stream_trainer: StreamTrainerConfig = Field(
        default_factory=StreamTrainerConfig,
        description="Training that begins on freed devices while the round still runs.",
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
    gate: GateConfig = Field(
        default_factory=GateConfig, description="The sync gate between learner and engines."
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
        default_factory=DeadlineConfig, description="Bounds on every wait."
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
        """Lay what is given over the preset. Fields that the preset filled in do not count as set,
        so that a resumed run changes only what was given beside `resume`."""
        if not isinstance(given, Mapping):
            return handler(given)
        preset = str(given.get("preset") or os.environ.get(PRESET_VARIABLE, "smollm2"))
        kinds = {
            "learner": LearnerConfig().model_dump(mode="json")
        }  # so that a setting of the loss need not name its kind
        config = handler(
            overlay(overlay(kinds, preset_values(preset)), {**given, "preset": preset})
        )
        _mark_as_set(config, given)
        return config

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Nothing is required, and nothing but an alternative's fields has a default: Prefect's
        form fills in the defaults it finds, and what is left out is the preset's.

        Alternatives are "anyOf", each under its kind and after "as the preset": that form draws
        them as a choice, "oneOf" as raw JSON.
        """
        reference = handler(core)
        _leave_to_preset(reference, handler)
        return reference

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.resume:  # the parts given must fit what the run has kept, which is not known here
            return self
        engine_members(self.cluster, self.engine.tensor_parallel_size)
        longest = self.sampling.max_response_tokens
        if longest >= self.engine.max_model_len:
            raise ValueError(
                "sampling.max_response_tokens must leave room for a prompt in engine.max_model_len"
                f" ({self.engine.max_model_len}), got {longest}; lower it or raise"
                " engine.max_model_len"
            )
        overlong = self.learner.overlong
        if isinstance(overlong, SoftPunishment) and overlong.max_tokens > longest:
            raise ValueError(
                "learner.overlong.max_tokens must be at most sampling.max_response_tokens"
                f" ({longest}), got {overlong.max_tokens}: no response would ever lose the whole"
                " penalty; lower it"
            )
        self._check_distribution()
        self._check_sleep()
        if (
            self.stream_trainer.enabled
            and isinstance(self.scheduling, SyncConfig)
            and self.scheduling.reward_timing == "after_rollout"
        ):
            raise ValueError(
                "scheduling.reward_timing must be 'per_response' for stream_trainer, got"
                " 'after_rollout': no group would be accepted while the rollout runs; change it, or"
                " disable stream_trainer"
            )
        placed = device_map(self.cluster)
        if (
            self.stream_trainer.enabled
            and len(placed["rollout"]) < 2
            and set(placed["learner"]) <= set(placed["rollout"])
        ):
            raise ValueError(
                "stream_trainer needs a learner device that a round can do without, got roles"
                f" {self.cluster.roles!r}; give rollout a second device, or learner one of its own,"
                " or disable stream_trainer"
            )
        self._check_judge()
        return self

    def _check_sleep(self) -> None:
        """Sleeping gives GPU memory to a learner on the same device, and to nobody else."""
        placed, kind = device_map(self.cluster), self.cluster.device_kind
        is_shared = set(placed["rollout"]) & set(placed["learner"])
        if self.engine.sleep_mode and not (kind == "cuda" and is_shared):
            raise ValueError(
                "engine.sleep_mode needs GPUs that rollout and learner share, "
                f"got device_kind {kind!r} with roles {self.cluster.roles!r}; leave it out"
            )

    def _check_distribution(self) -> None:
        """The learner scores responses under the distribution that they were sampled from."""
        wanted, top_p = self.sampling.temperature, self.sampling.top_p
        if self.learner.temperature != wanted:
            raise ValueError(
                f"learner.temperature must be sampling.temperature ({wanted:g}), "
                f"got {self.learner.temperature:g}: the learner would train another distribution "
                "than the engines sample from; set both, above 0"
            )
        if top_p != 1:
            raise ValueError(
                f"sampling.top_p must be 1, got {top_p:g}: the learner scores the whole"
                " distribution, so that its ratios to tokens of a cut one would be wrong, by up to"
                " 1 / top_p each; leave it out, and sharpen with sampling.temperature and"
                " learner.temperature"
            )

    def _check_judge(self) -> None:
        """A judge reward and the role judge need each other, and the judge's placement its
        device."""
        engine, placed, roles = (
            judge_engine_of(self.rewards),
            device_map(self.cluster),
            self.cluster.roles,
        )
        if engine is None:
            if "judge" in placed:
                raise ValueError(
                    f"the role judge needs a reward of kind judge, got none with roles {roles!r};"
                    " add one, or drop the role"
                )
            return
        if "judge" not in placed:
            raise ValueError(
                f"a reward of kind judge needs the role judge, got roles {roles!r}; add ', judge:"
                f" {placed['rollout'][-1]}'"
            )
        engine.check_device(self.cluster.device_kind)
        shares = self.engine.gpu_memory_utilization + engine.gpu_memory_utilization
        if (
            self.cluster.device_kind == "cuda"
            and shares > 1
            and set(placed["judge"]) & set(placed["rollout"])
        ):
            raise ValueError(
                "engine and judge on one GPU must together have a gpu_memory_utilization of at"
                f" most 1, got {shares:g}; lower one, or give the judge a device of its own"
            )

    def local_root(self) -> Path | None:
        """The artifact root as a local directory, or None when it is a URL."""
        return None if "://" in self.keep.artifact_root else Path(self.keep.artifact_root).resolve()

    def tracking_uri(self) -> str:
        """Where MLflow writes."""
        root = self.local_root()
        if self.keep.tracking_uri:
            return self.keep.tracking_uri
        if root is None:
            raise ValueError(
                "keep.tracking_uri must be given when keep.artifact_root is a URL"
                f" ({self.keep.artifact_root}); set it to an MLflow server or to"
                " sqlite:///path/mlflow.db"
            )
        return f"sqlite:///{root}/mlflow.db"


AS_PRESET: JsonSchemaValue = {
    "title": "as the preset",
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "description": "What the preset has.",
}


def _mark_as_set(model: BaseModel, given: Mapping[str, Any]) -> None:  # Any: parsed JSON
    """Have `model_fields_set` name what was given, at every depth, and not what a preset filled
    in."""
    model.__pydantic_fields_set__.intersection_update(given)
    for name, value in given.items():
        below = getattr(model, name, None)
        if isinstance(below, BaseModel) and isinstance(value, Mapping):
            _mark_as_set(below, value)


def _leave_to_preset(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    resolved = handler.resolve_ref_schema(schema)
    resolved.pop("required", None)
    schema.pop("default", None)
    if (
        schema.get("type") == "boolean"
    ):  # drawn as a switch, a boolean would be sent as false by whoever does not touch it
        schema["enum"] = [True, False]
        del schema["type"]
    if "oneOf" in schema:
        for option in schema["oneOf"]:
            _name_alternative(handler.resolve_ref_schema(option), handler)
        schema["anyOf"] = [AS_PRESET, *schema.pop("oneOf")]
    further = schema.get("additionalProperties")
    for part in (
        *resolved.get("properties", {}).values(),
        *([further] if isinstance(further, dict) else []),
    ):
        _leave_to_preset(part, handler)


def _name_alternative(alternative: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Chosen in the form, an alternative sends its defaults: the form tells by the fields that are
    filled in which one it is."""
    properties = alternative["properties"]
    for parts in (
        field.get("items", field)
        for field in properties.values()
        if "items" in field or "$ref" in field
    ):
        for part in handler.resolve_ref_schema(parts).get("properties", {}).values():
            if (
                "oneOf" in part
                # a mixture's tasks and a judge's model: named as alternatives of their own
            ):
                part["anyOf"] = part.pop("oneOf")
    alternative["title"] = properties["kind"]["default"] = properties["kind"]["const"]
    for name in alternative.pop("required", ()):
        if properties[name].get("type") == "string":
            properties[name].setdefault("default", "")
