"""The parts of a run's configuration. Rules between several parts read them without knowing
`RunConfig`, which checks these rules."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.registry import TaskConfig
from artifacts.models.registry import ModelConfig
from artifacts.prices import PriceConfig
from artifacts.urls import Location
from flows.config.keep import KeepConfig
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


class EvaluationConfig(FrozenConfig):
    """Held-out prompts, asked before the first step and after the last."""

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
            "Evaluate after every so many steps as well, with one response for each prompt; 0 means"
            " only before and after the run. Unset: a fifth of num_steps, or 0 below ten steps."
        ),
    )


class Parts(FrozenConfig):
    """All fields of `RunConfig`."""

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
    trains: bool = Field(
        True,
        description=(
            "Whether steps train; off, they only generate and score, with the model as it is and"
            " without learner devices (rollflow rollout)."
        ),
    )
    replays: Location = Field(
        "",
        description=(
            "Folder of a run whose rounds are asked again, each with the same prompts in the same"
            " number (rollflow rollout --from); needs trains=false. Empty: none."
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
