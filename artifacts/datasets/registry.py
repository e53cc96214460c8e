"""Every source of questions that a task may choose, a line each; a mixture and a curriculum
combine several.

A new one is a file with its configuration, whose `load(seed)` gives its rows, and one line in this
union.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from artifacts.datasets.chain_sum import ChainSumConfig
from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.datasets.humaneval_rows import HumanEvalConfig
from artifacts.datasets.reasoning_gym_rows import ReasoningGymTaskConfig
from artifacts.datasets.seeds import SeedsConfig
from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.datasets.tinycode import TinycodeConfig

SingleTask = Annotated[
    TinyMixConfig  # sums, letters and stories for a small model
    | TinycodeConfig  # small Python functions to write
    | ChainSumConfig  # sums of characters for the tiny model
    | ReasoningGymTaskConfig  # generators of reasoning-gym
    | FilesConfig  # Parquet, CSV or JSON lines of the user's
    | HubRowsConfig  # a data set of the Hugging Face hub
    | HumanEvalConfig  # HumanEval, evaluated only
    | SeedsConfig,  # episodes of an environment
    Field(discriminator="kind"),
]
