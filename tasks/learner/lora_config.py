"""The configuration of an adapter, which is trained in place of the model's weights.

    y = x W' + scale (x A') B'        A (rank, in), B (out, rank); W stays as it is

Hu et al., 2021 (LoRA); the rank-stable scale is of Kalajdzievski, 2023.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.adapter_files import CONFIG, WEIGHTS
from artifacts.config_parts import FrozenConfig
from tasks.engines.base import AdapterShape
from tasks.scheduling.prompt_stream import Answering

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")
LAYERS = (*ATTENTION, "gate_proj", "up_proj", "down_proj", "gate_up_proj")
MOST_RANK = 512  # of vLLM


NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")  # of an adapter: in ids, metrics and folders


class SweptAdapter(FrozenConfig):
    """What one of several adapters has of its own."""

    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="Its learning rate after the warm-up; None: that of learner.optimizer.",
    )
    seed: int = Field(default=0, ge=0, description="Of its first values; 0: those of a lone one.")
    domains: tuple[str, ...] = Field(
        default=(),
        description="Domains whose questions it alone answers; empty: it answers all of them.",
    )


class LoraConfig(FrozenConfig):
    """The settings of an adapter."""

    rank: int = Field(
        default=0,
        ge=0,
        le=MOST_RANK,
        description="Rank of an adapter that is trained in place of the weights; 0: the weights.",
    )
    alpha: float | None = Field(
        default=None,
        gt=0,
        description="What an adapter's scale is made of; None: twice the rank, a scale of 2.",
    )
    rank_stable: bool = Field(
        default=False,
        description="Divide alpha by the root of the rank, not by the rank (rsLoRA).",
    )
    targets: Literal["all", "attention"] | tuple[str, ...] = Field(
        default="all",
        description=(
            "Which matrices of every layer the adapter changes: all, those of attention, or those"
            " of these names (q_proj, down_proj)."
        ),
    )
    initial: str = Field(
        default="", description="Directory of a saved adapter, PEFT's format, to begin with."
    )
    publish: Literal["adapter", "merged"] = Field(
        default="adapter",
        description=(
            "What engines get: the adapter beside the model's weights, or weights with the adapter"
            " added, rounded to bf16."
        ),
    )

    sweep: Mapping[str, SweptAdapter] = Field(
        default={},
        description=(
            "Several adapters by name, trained side by side over one base and one engine, with what"
            " each has of its own; empty: one adapter."
        ),
    )

    @model_validator(mode="after")
    def _check_sweep(self) -> Self:
        strange = [name for name in self.sweep if not NAME.fullmatch(name)]
        if strange:
            raise ValueError(
                "an adapter of learner.lora.sweep must have a name of lower-case letters, digits,"
                f" - and _, got {strange[0]!r}; rename it"
            )
        named = Counter(domain for each in self.sweep.values() for domain in each.domains)
        without = [name for name, each in self.sweep.items() if not each.domains]
        shared = [domain for domain, count in named.items() if count > 1]
        if named and (without or shared):
            what = f"{shared[0]} twice" if shared else f"none for {without[0]}"
            raise ValueError(
                "learner.lora.sweep.*.domains must give each domain to one adapter, or all to all,"
                f" got {what}; give every adapter domains of its own, or none of them any"
            )
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = type(self).model_fields
        changed = sorted(name for name in fields if getattr(self, name) != fields[name].default)
        if changed and not self.rank:
            raise ValueError(
                f"learner.lora.{changed[0]} needs an adapter, got learner.lora.rank 0; set it to"
                " 16, or leave the other out"
            )
        if not self.targets:
            raise ValueError(
                "learner.lora.targets must name a matrix, got none; set it to all or attention"
            )
        return self

    def check_initial(self) -> None:
        """Raise ValueError if the adapter to begin with is not in its directory."""
        folder = Path(self.initial).expanduser()
        lacks = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if self.initial and lacks:
            raise ValueError(
                "learner.lora.initial must be a directory with an adapter in PEFT's format,"
                f" {self.initial} has no {lacks[0]}; give the folder that PEFT or a run has written"
            )

    @property
    def scale(self) -> float:
        """The factor of the adapter's product."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return alpha / (math.sqrt(self.rank) if self.rank_stable else self.rank)

    @property
    def modules(self) -> tuple[str, ...]:
        """The last part of the names of the modules that the adapter may change."""
        if self.targets == "all":
            return LAYERS
        return ATTENTION if self.targets == "attention" else tuple(self.targets)

    @property
    def engine_shape(self) -> AdapterShape | None:
        """What engines must make room for; None if whole weights are published."""
        if not self.rank or self.publish == "merged":
            return None
        return AdapterShape(
            rank=self.rank, scale=self.scale, modules=self.modules, names=self.names
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters of the run: those of the sweep, or one without a name."""
        return tuple(self.sweep) or ("",)

    @property
    def answering(self) -> Answering:
        """Which adapters answer which rows."""
        by_domain = {domain: name for name, each in self.sweep.items() for domain in each.domains}
        return Answering(names=self.names, by_domain=by_domain)

    def seed_of(self, name: str) -> int:
        """The seed of an adapter's first values."""
        return self.sweep[name].seed if name else 0

    def explain(self) -> str:
        """Describe in words what is trained."""
        where = self.targets if isinstance(self.targets, str) else ", ".join(self.targets)
        kind = "published beside the weights" if self.publish == "adapter" else "merged for engines"
        told = f"of rank {self.rank} on {where}, scale {self.scale:g}, {kind}"
        if not self.sweep:
            return f"an adapter {told}"
        each = ", ".join(
            f"{name} at rate {own.learning_rate:g}" if own.learning_rate else name
            for name, own in self.sweep.items()
        )
        return f"{len(self.sweep)} adapters ({each}) {told}"


NO_ADAPTER = LoraConfig()
