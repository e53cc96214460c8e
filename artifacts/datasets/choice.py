"""The choice of a dataset: one config union, one function from configuration and seed to rows.

A dataset is a function of both alone, so any process makes its own copy and tasks pass row numbers.
The sources are in modules of their own; `rows` says what a row is.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from artifacts.datasets.chain_sum import ChainSumConfig, chain_sum
from artifacts.datasets.file_rows import FilesConfig, file_rows
from artifacts.datasets.hub_rows import HubRowsConfig, hub_rows
from artifacts.datasets.humaneval_rows import HumanEvalConfig, humaneval_rows
from artifacts.datasets.mixture import MixtureConfig, SingleTask, mixture
from artifacts.datasets.reasoning_gym_rows import ReasoningGymConfig, reasoning_gym_rows
from artifacts.datasets.rows import Dataset, Message, Row
from artifacts.datasets.tiny_mix import TinyMixConfig, tiny_mix
from artifacts.datasets.tinycode import TinycodeConfig, tinycode

__all__ = [
    "ChainSumConfig", "Dataset", "FilesConfig", "HubRowsConfig", "HumanEvalConfig", "Message",
    "MixtureConfig", "ReasoningGymConfig", "Row", "TaskConfig",
    "TinyMixConfig", "TinycodeConfig", "load_dataset",
]  # fmt: skip

TaskConfig = Annotated[SingleTask | MixtureConfig, Field(discriminator="kind")]


def load_dataset(config: TaskConfig, seed: int) -> Dataset:
    """The rows of a task, the same in every process. Raises ValueError for input that holds no
    usable rows."""
    return (
        mixture(config, seed, _load_single)
        if isinstance(config, MixtureConfig)
        else _load_single(config, seed)
    )


def _load_single(config: SingleTask, seed: int) -> Dataset:
    match config:
        case TinyMixConfig():
            return tiny_mix(config, seed)
        case TinycodeConfig():
            return tinycode(config, seed)
        case ChainSumConfig():
            return chain_sum(config, seed)
        case ReasoningGymConfig():
            return reasoning_gym_rows(config, seed)
        case FilesConfig():
            return file_rows(config, seed)
        case HubRowsConfig():
            return hub_rows(config, seed)
        case HumanEvalConfig():
            return humaneval_rows(config, seed)
