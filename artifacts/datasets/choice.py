"""The choice of a dataset: one config union, one function from configuration and seed to rows.

A dataset is a function of both alone, so any process makes its own copy and tasks pass row numbers.
`sources` lists where questions may come from; `rows` says what a row is.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from artifacts.datasets.chain_sum import ChainSumConfig
from artifacts.datasets.curriculum import CurriculumConfig
from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.datasets.humaneval_rows import HumanEvalConfig
from artifacts.datasets.mixture import MixtureConfig
from artifacts.datasets.reasoning_gym_rows import ReasoningGymTaskConfig
from artifacts.datasets.registry import SingleTask
from artifacts.datasets.row_mapping import MappedConfig
from artifacts.datasets.rows import Dataset, Message, Row
from artifacts.datasets.seeds import SeedsConfig
from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.datasets.tinycode import TinycodeConfig

__all__ = [
    "ChainSumConfig", "CurriculumConfig", "Dataset", "FilesConfig", "HubRowsConfig",
    "HumanEvalConfig", "Message", "MixtureConfig", "ReasoningGymTaskConfig", "Row", "SeedsConfig",
    "TaskConfig", "TinyMixConfig", "TinycodeConfig", "load_dataset", "skips_unusable_rows",
]  # fmt: skip

TaskConfig = Annotated[SingleTask | MixtureConfig | CurriculumConfig, Field(discriminator="kind")]


def load_dataset(config: TaskConfig, seed: int) -> Dataset:
    """The rows of a task, the same in every process. Raises ValueError for input that holds no
    usable rows."""
    return config.load(seed)


def skips_unusable_rows(config: TaskConfig) -> bool:
    """Whether rows of the user's that cannot be used are left out."""
    return isinstance(config, MappedConfig) and config.unusable_rows == "skip"
