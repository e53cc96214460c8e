"""The configuration of the learner: loss, advantages, optimizer, and where parameters lie.

Leaves out the work of a rank (`trainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig, with_defaults
from artifacts.fixed_fields import Fixed
from artifacts.records import Group
from tasks.engines.transports.base import TransportKind
from tasks.learner.advantage import GaeAdvantage, GrpoAdvantage
from tasks.learner.credit import CreditConfig
from tasks.learner.dealing import GroupPart, as_part
from tasks.learner.log_ratios import Estimator
from tasks.learner.lora_config import NO_ADAPTER, LoraConfig
from tasks.learner.losses.clipped import PpoClipLoss
from tasks.learner.losses.registry import LossConfig
from tasks.learner.objective import NO_MASK, KlPlace, Objective, SequenceMaskConfig
from tasks.learner.overlong import AS_SCORED, OverlongConfig, SoftPunishment
from tasks.learner.samples import AggregationConfig, TokenMean, TrainingSet, training_set

ComputeDtype = Literal["bf16", "fp32", "mixed"]
Placement = Literal["replicated", "sharded"]
CRITIC_RATE = 5e-5  # the default


class AdamWConfig(FrozenConfig):
    """The settings of AdamW, its learning-rate schedule and the gradient clip."""

    learning_rate: float = Field(default=2e-5, gt=0, description="Learning rate after the warm-up.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Steps over which the learning rate rises linearly from zero."
    )
    decay_steps: int = Field(
        default=0,
        ge=0,
        description="Step by which the learning rate has fallen linearly to its floor; 0: never.",
    )
    floor_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Floor of a falling learning rate, as a share of the full one.",
    )
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Decay of the gradient's running mean."
    )
    beta2: float = Field(
        default=0.95, ge=0, lt=1, description="Decay of the squared gradient's running mean."
    )
    epsilon: Fixed[float] = 1e-08  # added to the root of the second moment
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Decoupled weight decay of matrices; vectors are never decayed.",
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        description="Bound on the global gradient norm, applied after the division.",
    )

    @model_validator(mode="after")
    def _check(self) -> AdamWConfig:
        if 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"optimizer.decay_steps must be 0 or beyond warmup_steps ({self.warmup_steps}), got"
                f" {self.decay_steps}; set it to the run's num_steps, or to 0 for a constant rate"
            )
        return self

    def explain(self) -> str:
        """Describe the learning rate from the first step to the last in words."""
        rise = f"{self.learning_rate:g}, "
        if self.warmup_steps > 1:
            rise = f"up to {self.learning_rate:g} over {self.warmup_steps} steps of warm-up, then "
        if not self.decay_steps:
            return f"{rise}constant"
        floor = self.learning_rate * self.floor_fraction
        return f"{rise}down to {floor:g} by step {self.decay_steps}"

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 1: up over the warm-up, down to the floor, constant."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        fallen = (
            min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
            if self.decay_steps
            else 0.0
        )
        return self.learning_rate * (1.0 - fallen * (1.0 - self.floor_fraction))


class CriticConfig(FrozenConfig):
    """The critic for advantages of kind gae; other kinds use no critic."""

    optimizer: Annotated[AdamWConfig, with_defaults({"learning_rate": CRITIC_RATE})] = Field(
        default=AdamWConfig(learning_rate=CRITIC_RATE),
        description="The critic's own AdamW, its warm-up and gradient clip.",
    )
    value_clip: float | None = Field(
        default=0.5,
        gt=0,
        description=(
            "How far a value may move within a step before it has no gradient in that direction;"
            " None: any distance."
        ),
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="First steps of a run in which the critic alone learns."
    )

    def explain(self) -> str:
        """Describe in words what the critic is and when it learns."""
        held = "" if self.value_clip is None else f", values held within {self.value_clip:g} a step"
        first = f"; it alone learns in the first {self.warmup_steps}" if self.warmup_steps else ""
        return (
            "a second copy of the model with one output, on the learner's ranks; learning rate"
            f" {self.optimizer.explain()}{held}{first}"
        )


class LearnerConfig(FrozenConfig):
    """The settings by which the policy learns."""

    loss: LossConfig = Field(default=PpoClipLoss(), description="Loss per token.")
    aggregation: AggregationConfig = Field(
        default=TokenMean(), description="How tokens are weighted into one number."
    )
    advantage: CreditConfig = Field(
        default=GrpoAdvantage(),
        description="What a reward is worth within its group, and which tokens answer for it.",
    )
    critic: CriticConfig = Field(
        default=CriticConfig(), description="The critic of learner.advantage.kind=gae."
    )
    overlong: OverlongConfig = Field(
        default=AS_SCORED, description="What training makes of responses that are too long."
    )
    optimizer: AdamWConfig = Field(
        default=AdamWConfig(), description="AdamW, its warm-up and the gradient clip."
    )
    lora: LoraConfig = Field(
        default=NO_ADAPTER, description="An adapter that is trained in place of the weights."
    )
    sequence_mask: SequenceMaskConfig = Field(
        default=NO_MASK, description="Which responses drifted too far to be trained."
    )
    kl_coefficient: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Weight of the KL term to the model the run started from.",
    )
    kl_estimator: Estimator = Field(
        default="k3", description="How that KL is estimated from a token's log-probabilities."
    )
    kl_place: KlPlace = Field(
        default="loss",
        description=(
            "Where that KL goes: a term of the loss, with a gradient of its own, or a penalty on"
            " the reward of each token, which all tokens up to it answer for."
        ),
    )
    entropy_coefficient: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="What a nat of entropy at a token takes off its loss; keeps sampling varied.",
    )
    mini_batches: int = Field(
        default=1,
        ge=1,
        description="Parts of a step's groups, each of which makes an optimizer update.",
    )
    passes: int = Field(default=1, ge=1, description="How often a step goes over its mini-batches.")
    max_tokens_per_microbatch: int = Field(
        default=2048, ge=1, description="Bound on computed tokens of a packed row; sets memory."
    )
    compute: ComputeDtype = Field(
        default="bf16",
        description=(
            "Dtype of forward and backward; masters and sums are fp32 always. mixed: weights that"
            " bf16 can hold, as engines have them, multiplied in fp32."
        ),
    )
    vision: Literal["frozen", "trained"] = Field(
        default="frozen",
        description="Whether a model's vision tower is trained with the rest, or stays as it is.",
    )
    # folder or URL of the pictures that prompts show; empty for a model of text alone
    pictures: Fixed[str] = ""
    recompute_layers: bool = Field(
        default=False, description="Recompute each layer in backward: less memory, a third slower."
    )
    router_replay: Literal["auto", "on", "off"] = Field(
        default="auto",
        description=(
            "Of a mixture of experts: whether the learner sends each token to the experts that"
            " computed it in the engine. auto: where engines can tell them."
        ),
    )
    parameters: Placement = Field(
        default="replicated",
        description=(
            "Where weights and gradients lie: whole on every rank, or one shard of them on each,"
            " gathered layer by layer: less memory, more communication."
        ),
    )
    transport: Literal["auto"] | TransportKind = Field(
        default="auto",
        description=(
            "How weights get to the engines: by a file in memory; ipc, mapped by engines on the"
            " learner's devices; broadcast to engines on other devices; auto, the fastest that the"
            " roles allow."
        ),
    )
    max_nonfinite_steps: int = Field(
        default=3,
        ge=1,
        description="Steps in a row that, for a gradient that is not finite, stop the run.",
    )

    @model_validator(mode="after")
    def _kl_has_a_gradient(self) -> Self:
        if self.kl_coefficient and self.kl_place == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "learner.kl_estimator must be k2 or k3 in the loss, got k1, whose gradient is zero"
                " on average; change it, or set learner.kl_place=reward"
            )
        return self

    @model_validator(mode="after")
    def _loss_fits_the_updates(self) -> Self:
        """Dual clip needs a ratio that moves, several updates a loss that corrects staleness."""
        if self.num_updates > 1 and not self.loss.corrects_staleness:
            raise ValueError(
                "learner.mini_batches * learner.passes must be 1 with learner.loss.kind"
                f" {self.loss.kind!r}, got {self.num_updates}: from the second update on the policy"
                " has moved away from what sampled, which this loss does not correct; take another"
                " loss, or set both to 1"
            )
        loss = self.loss
        is_dual = isinstance(loss, PpoClipLoss) and loss.dual_clip
        if is_dual and not (self.num_updates > 1 or loss.clips):
            raise ValueError(
                "learner.loss.dual_clip needs a ratio that can move, got old_policy 'learner' and"
                " one update a step, with which it is 1; set learner.loss.old_policy=engine, raise"
                " learner.mini_batches or learner.passes, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _mixed_is_replicated(self) -> Self:
        if self.compute == "mixed" and self.parameters != "replicated":
            raise ValueError(
                "learner.compute must be bf16 or fp32 with learner.parameters=sharded, got mixed:"
                " shards are masters, which are not rounded; change one of the two"
            )
        return self

    @model_validator(mode="after")
    def _critic_is_replicated(self) -> Self:
        if self.has_critic and self.parameters != "replicated":
            raise ValueError(
                "learner.parameters must be replicated with learner.advantage.kind=gae, got"
                f" {self.parameters!r}: a critic cannot be sharded; change it, or take another"
                " advantage"
            )
        return self

    @property
    def num_updates(self) -> int:
        """Optimizer updates that a step makes."""
        return self.mini_batches * self.passes

    @property
    def has_critic(self) -> bool:
        """True if every token's advantage comes from a critic."""
        return isinstance(self.advantage, GaeAdvantage)

    @property
    def scores_first(self) -> bool:
        """True if all responses of a step are scored before its first gradient."""
        return self.num_updates > 1 or self.has_critic

    @property
    def trains_all(self) -> bool:
        """True if zero advantages leave a gradient: KL term, entropy bonus or critic."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0 or self.has_critic

    @property
    def flat_groups_cost(self) -> bool:
        """True if a group of equal rewards can still have a gradient."""
        return (
            self.trains_all
            or isinstance(self.overlong, SoftPunishment)
            or not self.advantage.leaves_flat_groups_out
        )

    @property
    def objective(self) -> Objective:
        """The loss with all its terms. A KL penalty in the reward is left out with a critic, whose
        advantages contain it already."""
        is_in_advantage = self.has_critic and self.kl_place == "reward"
        return Objective(
            loss=self.loss,
            sequence_mask=self.sequence_mask,
            kl_coefficient=0.0 if is_in_advantage else self.kl_coefficient,
            kl_estimator=self.kl_estimator,
            kl_place=self.kl_place,
            entropy_coefficient=self.entropy_coefficient,
        )

    def training_set(self, groups: Sequence[Group | GroupPart]) -> TrainingSet:
        """The samples of groups or parts of groups with their advantages, ready for a rank."""
        return training_set(groups, self.advantage, self.aggregation, self.overlong)

    def training_sets(self, groups: Sequence[Group | GroupPart]) -> tuple[TrainingSet, ...]:
        """The same for each adapter by itself: each trains on what it sampled."""
        parts = [as_part(group) for group in groups]
        return tuple(
            replace(
                self.training_set([part for part in parts if part.group.prompt.adapter == name]),
                adapter=name,
            )
            for name in self.lora.names
        )

    def optimizer_of(self, adapter: str) -> AdamWConfig:
        """The optimizer of an adapter by its name; without one, of all that is trained."""
        own = self.lora.sweep[adapter].learning_rate if adapter else None
        return self.optimizer.model_copy(update={"learning_rate": own}) if own else self.optimizer

    @property
    def ranks_in_step(self) -> bool:
        """True if ranks must compute together, in the same order: parameters are sharded."""
        return self.parameters == "sharded"
