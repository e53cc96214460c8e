"""One rank of the learner: accumulate gradients of groups as they come, then update together.

    accumulate(groups)*  ->  update(step)  ->  export_weights / fingerprints / probe  ->  next step
        sums of gradients,     reduce, divide once,
        normaliser, loss       clip, AdamW, gather

`accumulate` talks to no other rank, so ranks may get different numbers of calls in any split
(invariant 4, docs/architecture.md). All methods are synchronous and called from one thread; the
Dask actor around it is `remote.LearnerActor`.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from artifacts.records import Group, WeightsRef, unpack
from artifacts.weights import fingerprint, write_weights
from tasks.learner.advantage import AdvantageConfig, GrpoAdvantage
from tasks.learner.dealing import GroupPart
from tasks.learner.divergence import Estimator
from tasks.learner.gate import ALL_PASS, SequenceGateConfig
from tasks.learner.gradient_norm import squared_norm
from tasks.learner.loss import LossConfig
from tasks.learner.losses.ppo_clip import PpoClipLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.normalisation import NormalisationConfig, TokenMean
from tasks.learner.objective import KlPlace, Objective
from tasks.learner.overlong import AS_SCORED, OverlongConfig, SoftPunishment
from tasks.learner.packing import Sample, micro_batches, pack_samples
from tasks.learner.policy import ComputeDtype, Policy, load_reference
from tasks.learner.ranks import Ranks
from tasks.learner.reports import AccumulateReport, UpdateReport, skip_reason
from tasks.learner.samples import training_set
from tasks.learner.sharding import AdamWConfig, ShardedAdamW
from tasks.learner.shards import load_shards, save_shard

__all__ = ["AccumulateReport", "LearnerConfig", "LearnerRank", "UpdateReport"]


class LearnerConfig(BaseModel):
    """How the policy learns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: LossConfig = Field(default=PpoClipLoss(), description="Loss per token.")
    normalisation: NormalisationConfig = Field(
        default=TokenMean(), description="How tokens are weighted into one number."
    )
    advantage: AdvantageConfig = Field(
        default=GrpoAdvantage(), description="What a reward is worth within its group."
    )
    overlong: OverlongConfig = Field(
        default=AS_SCORED, description="What training makes of responses that are too long."
    )
    optimizer: AdamWConfig = Field(
        default=AdamWConfig(), description="AdamW, its warm-up and the gradient clip."
    )
    gate: SequenceGateConfig = Field(
        default=ALL_PASS, description="Which responses drifted too far to be trained."
    )
    kl_coefficient: float = Field(
        default=0.0, ge=0, description="Weight of the KL term to the model the run started from."
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
        description="What a nat of entropy at a token takes off its loss; keeps sampling varied.",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="Divides the logits; must be what the engine's log-probabilities used.",
    )
    max_tokens_per_microbatch: int = Field(
        default=2048, ge=1, description="Bound on computed tokens of a packed row; sets memory."
    )
    compute: ComputeDtype = Field(
        default="bf16",
        description="Dtype of forward and backward; masters and sums are fp32 always.",
    )
    recompute_layers: bool = Field(
        default=False, description="Recompute each layer in backward: less memory, a third slower."
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

    @property
    def is_regularised(self) -> bool:
        """Whether responses without an advantage have a gradient all the same."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0

    @property
    def flat_groups_cost(self) -> bool:
        """Whether a group of equal rewards can have a gradient all the same."""
        return (
            self.is_regularised
            or isinstance(self.overlong, SoftPunishment)
            or not self.advantage.leaves_flat_groups_out
        )

    @property
    def objective(self) -> Objective:
        """The loss with all its terms."""
        return Objective(
            loss=self.loss,
            gate=self.gate,
            kl_coefficient=self.kl_coefficient,
            kl_estimator=self.kl_estimator,
            kl_place=self.kl_place,
            entropy_coefficient=self.entropy_coefficient,
        )


class LearnerRank:
    """The policy, its gradients and this rank's part of the optimizer."""

    def __init__(
        self,
        config: LearnerConfig,
        model_path: str,
        rank: int,
        world_size: int,
        device: str = "cpu",
    ) -> None:
        self._config = config
        self._ranks = Ranks(rank, world_size, torch.device(device))
        # first, so that what its loading leaves free is there for the policy
        reference = None
        if config.kl_coefficient:
            reference = load_reference(model_path, config.compute, device)
        self._policy = Policy(
            model_path, config.compute, device, world_size, config.recompute_layers
        )
        self._optimizer = ShardedAdamW(
            config.optimizer, self._policy.flat, self._policy.take_initial_masters(), self._ranks
        )
        self._micro_step = MicroStep(config.objective, config.temperature, self._policy, reference)
        self._normaliser = 0.0
        self._loss_sum = 0.0

    def join(self, init_method: str, deadline_s: float) -> None:
        """Enter the group of all ranks. Collective; the deadline holds for every later collective
        too."""
        self._ranks.join(init_method, deadline_s)
        checksum = float(
            fingerprint(self._policy.flat.values[: self._policy.flat.num_elements]) % (1 << 40)
        )
        total, count = self._ranks.sum([checksum, 1.0])
        if total != count * checksum:
            raise ValueError(
                f"all {self._ranks.world_size} ranks must start from the same weights, they differ;"
                " check model_path"
            )

    def accumulate(self, payload: bytes) -> AccumulateReport:
        """Add the gradients, loss and normaliser of these groups or parts of groups (packed
        tuples). Not collective."""
        groups: tuple[Group | GroupPart, ...] = unpack(payload)
        data = training_set(
            groups, self._config.advantage, self._config.normalisation, self._config.overlong
        )
        wanted = [
            sample
            for sample in data.samples
            if sample.advantage != 0.0 or self._config.is_regularised
        ]
        report = AccumulateReport(
            num_groups=data.num_groups,
            num_groups_flat=data.num_groups_flat,
            num_responses=len(data.samples),
            num_responses_excluded=data.num_responses_excluded,
            num_responses_masked=data.num_responses_masked,
            num_responses_skipped=len(data.samples) - len(wanted),
            num_tokens=sum(len(sample.response) for sample in data.samples),
            normaliser=data.normaliser,
        )
        for batch in micro_batches(wanted, self._config.max_tokens_per_microbatch):
            report += self._micro_step.run(batch)
        self._normaliser += report.normaliser
        self._loss_sum += report.loss_sum
        return report

    def discard(self) -> None:
        """Forget what was accumulated."""
        self._policy.discard_gradients()
        self._normaliser = self._loss_sum = 0.0

    def update(self, step: int) -> UpdateReport:
        """Reduce over ranks, divide once, clip, AdamW, unless `skip_reason` has one. Collective."""
        started = time.time()
        normaliser, loss_sum = self._ranks.sum([self._normaliser, self._loss_sum])
        rate, loss = self._config.optimizer.rate(step), loss_sum / normaliser if normaliser else 0.0
        gradient, grad_norm = self._reduced(normaliser)
        skipped = skip_reason(normaliser, loss, grad_norm)
        if skipped is None:
            self._apply(gradient, grad_norm, rate)
        self.discard()
        return UpdateReport(
            step=step,
            skipped=skipped,
            normaliser=normaliser,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=rate,
            busy=((started, time.time()),),
        )

    def _reduced(self, normaliser: float) -> tuple[Tensor, float]:
        """This rank's slice of the gradient after the division, and the norm of the whole."""
        gradient = self._ranks.reduce_scatter(self._policy.flat.gradients).div_(normaliser or 1.0)
        return gradient, math.sqrt(self._ranks.sum([squared_norm(gradient)])[0])

    def _apply(self, gradient: Tensor, norm: float, rate: float) -> None:
        if norm > self._config.optimizer.max_grad_norm:
            gradient.mul_(self._config.optimizer.max_grad_norm / norm)
        self._optimizer.step(gradient, rate)

    def export_weights(self, version: int, path: str) -> WeightsRef | None:
        """Rank 0 writes the bf16 weights under the checkpoint's names; the others return None."""
        if self._ranks.rank:
            return None
        return write_weights(self._policy.flat.named_views(), path, version)

    def fingerprints(self) -> dict[str, int]:
        """Fingerprint of every tensor that `export_weights` writes."""
        return {name: fingerprint(view) for name, view in self._policy.flat.named_views()}

    def probe(self, probes: Sequence[tuple[int, ...]]) -> tuple[tuple[float, ...], ...]:
        """Log-probability of each token after the first, per probe, at temperature 1."""
        samples = [
            Sample(
                prompt=ids[:1],
                response=ids[1:],
                behaviour=(),
                advantage=0.0,
                reward=0.0,
                weight=0.0,
            )
            for ids in probes
            if len(ids) > 1
        ]
        values = iter(self._policy.score(pack_samples(samples)).logp.tolist() if samples else ())
        return tuple(tuple(next(values) for _ in ids[1:]) for ids in probes)

    def save_checkpoint(self, path: str, step: int) -> None:
        """Write this rank's shard into the directory. Then freed memory goes back to the system."""
        save_shard(path, step, self._optimizer, self._policy.flat, self._ranks)
        _give_memory_back()

    def load_checkpoint(self, path: str) -> int:
        """Restore weights, optimizer and step bit by bit; returns the step. What was accumulated is
        forgotten."""
        self.discard()
        return load_shards(path, self._optimizer, self._policy.flat)

    def check_peers(self) -> None:
        """Raise PeerLost when the group of all ranks is broken; waits for nothing."""
        self._ranks.check()

    def close(self) -> None:
        """Leave the group."""
        self._ranks.close()


def _give_memory_back() -> None:
    """Rows of ever new lengths leave holes between what the allocator holds, which it keeps: a
    gigabyte in twenty steps of SmolLM2.

    Once a checkpoint, because every page is faulted in anew afterwards. Only glibc has the call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
