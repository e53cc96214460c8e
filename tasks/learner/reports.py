"""The learner's reports. Those of work are sums, so that several calls and ranks can be added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import add

from artifacts.records import Span, WeightsRef
from tasks.engines.base import Attestation
from tasks.learner.version_sums import TokenSums, VersionSums


class Skipped(StrEnum):
    """The reason why a step made no update: its weights are those before, bit by bit."""

    EMPTY = "empty"  # nothing was in the loss
    FLAT = "flat"  # the gradient is exactly zero: momentum alone would move the weights
    CRITIC_WARMUP = "critic_warmup"  # the critic alone learns
    NONFINITE = "nonfinite"  # the loss or the gradient is not a number, or infinite


REASONS = {
    Skipped.EMPTY: "nothing was in its loss",
    Skipped.FLAT: "its gradient is zero, as of groups whose rewards agree",
    Skipped.CRITIC_WARMUP: "its critic learns first",
    Skipped.NONFINITE: "its gradient is not finite",
}


class GradientsNotFinite(RuntimeError):
    """Too many steps in a row had a gradient that was not finite; the run cannot recover."""


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Tokens that each expert computed, by layer; empty of a dense model."""

    tokens: tuple[tuple[int, ...], ...] = ()  # (layers, experts)

    def __add__(self, other: ExpertLoad) -> ExpertLoad:
        if not (self.tokens and other.tokens):
            return self if self.tokens else other
        layers = zip(self.tokens, other.tokens, strict=True)
        return ExpertLoad(tuple(tuple(map(add, *layer)) for layer in layers))

    def figures(self) -> dict[str, float]:
        """The largest load of an expert over the mean of its layer, and the share of experts
        without a token; nothing of a dense model."""
        if not any(map(any, self.tokens)):
            return {}
        counts = [count for layer in self.tokens for count in layer]
        return {
            "train/expert_load_max": max(
                max(layer) * len(layer) / max(1, sum(layer)) for layer in self.tokens
            ),
            "train/dead_expert_fraction": counts.count(0) / len(counts),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulateReport:
    """The report of one call of `accumulate`. Token statistics cover only tokens whose
    log-probabilities were computed, and so not those of skipped responses."""

    num_groups: int = 0  # groups given
    num_groups_flat: int = 0  # of these, groups whose advantages are all zero
    num_responses: int = 0  # responses in the loss, the skipped ones included
    num_responses_excluded: int = 0  # without a verdict or a sampled token: not in the loss
    num_responses_masked: int = 0  # truncated responses that were left out of the loss
    num_responses_skipped: int = 0  # in the normaliser, not computed: no gradient
    num_tokens: int = 0  # sampled tokens in the loss, those of skipped responses included
    num_tokens_scored: int = 0  # sampled tokens whose log-probability was computed
    num_tokens_computed: int = 0  # tokens that went through the layers, given ones included
    num_prompt_tokens_computed: int = 0  # of these, tokens of prompts
    num_prompt_tokens_saved: int = 0  # prompt tokens that sharing spared
    num_micro_batches: int = 0  # packed rows
    normaliser: float = 0.0  # what was added to the divisor
    loss_sum: float = 0.0  # weighted token losses, KL term and entropy bonus included
    importance_sum: float = 0.0  # weights learner over engine before truncation, over scored tokens
    importance_square_sum: float = 0.0  # of the squares of these weights
    importance_max: float = 0.0  # largest of these weights
    num_tokens_truncated: int = 0  # scored tokens whose weight was truncated
    num_tokens_clippable: int = 0  # under a loss whose clip can act, once for each update
    num_tokens_clipped: int = 0  # of these, without gradient: their ratio was clipped or masked
    num_responses_droppable: int = 0  # computed responses that a sequence mask looked at
    num_responses_dropped: int = 0  # of these, responses that it dropped
    num_tokens_dropped: int = 0  # their tokens
    num_tokens_nonfinite: int = 0  # scored tokens without a finite log-probability on either side
    entropy_sum: float = 0.0  # nats, over scored tokens
    reference_kl_sum: float = 0.0  # k3 estimate to the reference, over scored tokens
    mismatch_abs_sum: float = 0.0  # |learner - engine| log-probability, over scored tokens
    mismatch_k3_sum: float = 0.0  # k3 estimate of KL(engine || learner), over scored tokens
    by_version: VersionSums = field(default_factory=VersionSums)  # scored tokens
    expert_load: ExpertLoad = ExpertLoad()  # of the tokens in scored rows
    num_tokens_passed: int = 0  # of several updates: sampled tokens in them, in every pass again
    proximal_k3_sum: float = 0.0  # k3 estimate of KL(proximal || learner), over these
    value_loss_sum: float = 0.0  # weighted value losses of tokens; 0 without a critic
    busy: tuple[tuple[float, float], ...] = ()  # when the device worked: Unix seconds, (start, end)

    def __add__(self, other: AccumulateReport) -> AccumulateReport:
        """Add two reports: sums are added, the larger maximum is kept, busy times are joined."""
        total = {
            each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)
        }
        largest = max(self.importance_max, other.importance_max)
        return AccumulateReport(**(total | {"importance_max": largest}))

    @property
    def busy_s(self) -> float:
        """Seconds in which the device worked."""
        return sum(end - start for start, end in self.busy)

    @property
    def may_drop_gradients(self) -> bool:
        """True if a clip or the sequence mask can zero the gradient of any token."""
        return self.num_tokens_clippable > 0 or self.num_responses_droppable > 0

    @property
    def effective_fraction(self) -> float:
        """The effective sample size over the number of scored tokens, of all versions."""
        scored = TokenSums(
            num_tokens=self.num_tokens_scored,
            importance_sum=self.importance_sum,
            importance_square_sum=self.importance_square_sum,
        )
        return scored.effective_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpdate:
    """One optimizer update, or the reason for none; the same on every rank but for `busy`."""

    skipped: Skipped | None  # why no update was made; None when it was
    normaliser: float  # divisor, summed over ranks
    loss: float  # divided
    grad_norm: float  # global norm after the division, before the clip
    busy: tuple[float, float]  # when the device worked: Unix seconds, (start, end)
    # of a step that makes several: share of tokens without gradient because their ratio was clipped
    # or masked, and k3 estimate of KL(proximal || learner) a token, both before this update
    clip_fraction: float = 0.0
    proximal_k3: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticReport:
    """The report of the critic's updates in a step; the same on every rank."""

    loss: float  # mean over its updates
    grad_norm: float  # mean over its updates, before the clip
    num_skipped: int  # updates that were left out
    # 1 - variance of (return - value) over variance of the return, of all tokens, before the first
    # update: 1 for a perfect critic, 0 for a constant one
    explained_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The report of a step's updates; the same on every rank but for `computed` and `busy`."""

    step: int  # the step of these updates
    skipped: Skipped | None  # why the step made no update; None when it made one or more
    normaliser: float  # divisor, summed over ranks and updates
    loss: float  # of an update, divided; the mean of several
    grad_norm: float  # global norm after the division, before the clip; the mean of several
    learning_rate: float  # of the step
    busy: tuple[tuple[float, float], ...]  # when the device updated: Unix seconds, (start, end)
    several: tuple[MadeUpdate, ...] = ()  # in their order, where a step makes several
    computed: AccumulateReport = AccumulateReport()  # passes between several updates
    critic: CriticReport | None = None
    # of several adapters, each one's update and its learning rate
    by_adapter: Mapping[str, tuple[MadeUpdate, float]] = field(default_factory=dict)

    @property
    def reasons(self) -> tuple[Skipped | None, ...]:
        """For each of the updates, the reason why it was not made; None for an update that was."""
        made = self.several or tuple(update for update, _ in self.by_adapter.values())
        return tuple(update.skipped for update in made) or (self.skipped,)

    @property
    def applied(self) -> bool:
        """True if the weights were updated."""
        return self.skipped is None


def update_report(
    step: int, made: Mapping[str, MadeUpdate], rates: Mapping[str, float]
) -> UpdateReport:
    """The report of one update of each adapter, or of the one update without any by name: means
    over the updates, and the gravest reason if none was made. rates: each one's learning rate."""
    updates, number = list(made.values()), len(made)
    reasons = [update.skipped for update in updates if update.skipped is not None]
    return UpdateReport(
        step=step,
        skipped=main_skip_reason(reasons) if len(reasons) == number else None,
        normaliser=sum(update.normaliser for update in updates),
        loss=sum(update.loss for update in updates) / number,
        grad_norm=sum(update.grad_norm for update in updates) / number,
        learning_rate=sum(rates.values()) / number,
        busy=tuple(update.busy for update in updates),
        by_adapter={name: (update, rates[name]) for name, update in made.items() if name},
    )


def skip_reason(normaliser: float, loss: float, grad_norm: float) -> Skipped | None:
    """The reason to make no update, or None, from sums over all ranks: all decide alike."""
    if not normaliser:
        return Skipped.EMPTY
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        return Skipped.NONFINITE
    return Skipped.FLAT if grad_norm == 0.0 else None


def skipped_of(figures: Mapping[str, float]) -> Skipped | None:
    """The reason why the step of these `update_figures` made no update; None if it did."""
    if figures.get("train/applied"):
        return None
    return main_skip_reason(reason for reason in Skipped if figures.get(f"train/skipped_{reason}"))


def main_skip_reason(reasons: Iterable[Skipped]) -> Skipped | None:
    """The gravest of these reasons: an error counts more than a usual one. None for none."""
    return max(reasons, key=list(Skipped).index, default=None)


def check_updates(steps: Sequence[Mapping[str, float]], max_nonfinite_steps: int) -> None:
    """Raises GradientsNotFinite if the figures of the last steps show max_nonfinite_steps in a row
    whose gradient was not finite. Flat and empty steps, which compute none, neither count nor end
    the row."""
    num_nonfinite = 0
    for figures in reversed(steps):
        skipped = skipped_of(figures)
        if skipped is None:
            return
        num_nonfinite += skipped is Skipped.NONFINITE
        if num_nonfinite >= max_nonfinite_steps:
            break
    else:
        return
    raise GradientsNotFinite(
        f"a gradient must be finite, it was not in {max_nonfinite_steps} steps in a row, and "
        "nothing was learned in them; look at train/nonfinite_tokens and at the responses' "
        "logprobs (engine.dtype, learner.compute), lower learner.optimizer.learning_rate, "
        f"or raise learner.max_nonfinite_steps ({max_nonfinite_steps})"
    )


def update_figures(update: UpdateReport) -> dict[str, float]:
    """The metrics of a step's updates by name, ready for tracking; of several, each one's too."""
    reasons = update.reasons
    figures = {
        "train/loss": update.loss,
        "train/grad_norm": update.grad_norm,
        "train/learning_rate": update.learning_rate,
        "train/applied": float(reasons.count(None)),
        **{f"train/skipped_{reason}": float(reasons.count(reason)) for reason in Skipped},
    }
    for number, made in enumerate(update.several, 1):
        figures[f"train/update_{number}_clip_fraction"] = made.clip_fraction
        figures[f"train/update_{number}_proximal_k3"] = made.proximal_k3
        figures[f"train/update_{number}_grad_norm"] = made.grad_norm
    for name, (made, rate) in update.by_adapter.items():
        figures[f"adapter/{name}_applied"] = float(made.skipped is None)
        figures[f"adapter/{name}_grad_norm"] = made.grad_norm
        figures[f"adapter/{name}_learning_rate"] = rate
        figures[f"adapter/{name}_loss"] = made.loss
    if update.critic is not None:
        figures |= {
            "train/value_loss": update.critic.loss,
            "train/critic_grad_norm": update.critic.grad_norm,
            "train/critic_skipped": float(update.critic.num_skipped),
            "train/explained_variance": update.critic.explained_variance,
        }
    return figures


def token_means(report: AccumulateReport) -> dict[str, float]:
    """The per-token metrics by name, ready for tracking; 0 where no token was scored. Three shares
    are left out where nothing clips or masks: of clipped tokens, dropped responses, and cut
    tokens."""
    count = max(1, report.num_tokens_scored)
    clipped = report.num_tokens_clipped / max(1, report.num_tokens_clippable)
    cut = {}
    if report.may_drop_gradients:
        cut["train/cut_fraction"] = clipped + report.num_tokens_dropped / count
    if report.num_tokens_clippable:
        cut["train/clip_fraction"] = clipped
    if report.num_responses_droppable:
        cut["train/gated_fraction"] = report.num_responses_dropped / report.num_responses_droppable
    return {**cut, **report.expert_load.figures()} | {
        "train/tokens_scored": float(report.num_tokens_scored),
        "train/effective_sample_fraction": report.effective_fraction,
        "train/importance_mean": report.importance_sum / count,
        "train/importance_max": report.importance_max,
        "train/truncated_fraction": report.num_tokens_truncated / count,
        "train/entropy_nats": report.entropy_sum / count,
        "train/reference_kl": report.reference_kl_sum / count,
        "train/mismatch_abs": report.mismatch_abs_sum / count,
        "train/mismatch_k3": report.mismatch_k3_sum / count,
        "train/flat_group_fraction": report.num_groups_flat / max(1, report.num_groups),
        "train/nonfinite_tokens": float(report.num_tokens_nonfinite),
        "train/busy_s": report.busy_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """The report of a round's gradients; the gradients themselves stay with the learners."""

    ranks: tuple[AccumulateReport, ...]  # by rank; all zero if the step had been updated before
    num_groups_streamed: int = 0  # groups trained before the round was closed
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """The report of a step's updates, with their times."""

    update: UpdateReport
    spans: tuple[Span, ...]
    # by rank, the passes between the updates of a step that makes several
    ranks: tuple[AccumulateReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """The report of a publication; the engines sample with this version from now on."""

    weights: WeightsRef
    probe_difference_nats: float | None  # mean absolute one; None without a check
    check_s: float  # seconds of the comparison alone; attestations are made while engines load
    attested: Attestation | None = None  # what engines must attest; None without a weight check
    drained_s: float = 0.0  # longest time in which an engine finished requests before its load
    spans: tuple[Span, ...] = ()
