"""The engines by kind.

    EngineConfig (chosen by `kind`) ──▶ its build_engine ──▶ Replica

A new engine needs a file with its configuration and its replica, and one line in this union.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.vllm.engine import VllmEngineConfig

EngineConfig = Annotated[
    VllmEngineConfig  # generates
    | SimulatedEngineConfig,  # takes the time that it would take
    Field(discriminator="kind"),
]
