"""The engines by kind.

    EngineConfig (chosen by `kind`) ──▶ its build_engine ──▶ Replica

A new engine needs a file with its configuration and its replica, and one line in this union; one of
the user's, a class of `ReplicaConfig`, needs its import path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from artifacts.custom_part import CustomPart
from tasks.engines.base import Replica, ReplicaConfig
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.vllm.engine import VllmEngineConfig


class CustomEngine(CustomPart, ReplicaConfig):
    """The engine of a class of the user's, which is a `ReplicaConfig` and gets the settings that
    every kind of engine has beside its kwargs."""

    check: ClassVar[str] = "engine"
    kind: Literal["custom"] = Field("custom", description="Chooses an engine of your own.")

    @property
    def part(self) -> ReplicaConfig:
        """The user's settings. Raises ValueError unless they are a `ReplicaConfig`."""
        part = self.made(**{name: getattr(self, name) for name in ReplicaConfig.model_fields})
        if not isinstance(part, ReplicaConfig):
            raise ValueError(
                f"an engine must be a class of tasks.engines.base.ReplicaConfig, {self.path} is"
                " none; inherit it, see docs/parts.md"
            )
        return part

    @property
    def imports(self) -> tuple[str, ...]:
        return self.part.imports

    @property
    def sleeps(self) -> bool:
        return self.part.sleeps

    @property
    def takes_offers(self) -> bool:
        return self.part.takes_offers

    @property
    def gpu_share(self) -> float:
        return self.part.gpu_share

    def explain_steps(self, on_cpu: bool) -> str:
        return self.part.explain_steps(on_cpu)

    def check_model(self, model: Any, on_cpu: bool) -> None:  # Any: as transformers has it
        self.part.check_model(model, on_cpu)

    def route_obstacle(self, model: Any, on_cpu: bool) -> str:  # Any: as transformers has it
        return self.part.route_obstacle(model, on_cpu)

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> Replica:
        part = self.part
        with self.calling("build_engine"):
            return part.build_engine(model_path, name, core_ids, seed)


EngineConfig = Annotated[
    VllmEngineConfig  # generates
    | SimulatedEngineConfig  # takes the time that it would take
    | CustomEngine,  # a class of the user's
    Field(discriminator="kind"),
]
ENGINES: tuple[type[ReplicaConfig], ...] = get_args(get_args(EngineConfig)[0])
