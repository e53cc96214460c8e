"""The engines by kind.

    EngineConfig (chosen by `kind`) ──▶ build_engine ──▶ Replica

A new engine needs a file with its configuration and its replica, and one line in this union.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from tasks.engines.base import Replica
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.vllm.engine import VllmEngineConfig

EngineConfig = Annotated[
    VllmEngineConfig  # generates
    | SimulatedEngineConfig,  # takes the time that it would take
    Field(discriminator="kind"),
]


def build_engine(
    config: EngineConfig, model_path: str, name: str, core_ids: Sequence[int], seed: int
) -> Replica:
    """Build a replica of this kind in this process and return it when it is ready."""
    return config.build_engine(model_path, name, core_ids, seed)
