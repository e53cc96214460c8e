"""The parts of a configuration that rules between several parts may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from artifacts.datasets.registry import TaskConfig
from artifacts.models.registry import ModelConfig
from flows.config.evaluation import EvaluationConfig
from tasks.cluster.devices import ClusterConfig
from tasks.elastic.config import ElasticConfig
from tasks.engines.base import SamplingConfig
from tasks.engines.registry import EngineConfig
from tasks.environments.config import EpisodeConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.weight_check import WeightCheckConfig
from tasks.rewards.registry import RewardConfig
from tasks.run.run_context import DeadlineConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.registry import SchedulingConfig
from tasks.scheduling.seeding import SeedingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig


class Parts(Protocol):
    """Protocol of the parts of a RunConfig that depend on each other."""

    @property
    def batch(self) -> BatchConfig: ...
    @property
    def cluster(self) -> ClusterConfig: ...
    @property
    def deadlines(self) -> DeadlineConfig: ...
    @property
    def evaluation(self) -> EvaluationConfig: ...
    @property
    def engine(self) -> EngineConfig: ...
    @property
    def environments(self) -> Mapping[str, EnvironmentConfig]: ...
    @property
    def episodes(self) -> EpisodeConfig: ...
    @property
    def weight_check(self) -> WeightCheckConfig: ...
    @property
    def elastic(self) -> ElasticConfig: ...
    @property
    def learner(self) -> LearnerConfig: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def planner(self) -> PlannerConfig: ...
    @property
    def preset(self) -> str: ...
    @property
    def rewards(self) -> Mapping[str, RewardConfig]: ...
    @property
    def sampling(self) -> SamplingConfig: ...
    @property
    def scheduling(self) -> SchedulingConfig: ...
    @property
    def seeding(self) -> SeedingConfig: ...
    @property
    def stream_trainer(self) -> StreamTrainerConfig: ...
    @property
    def task(self) -> TaskConfig: ...
