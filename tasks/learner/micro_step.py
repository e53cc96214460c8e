"""The forward pass, loss and backward pass of one packed row, and the row's report, whose sums stay
on the device (`row_report`).

run            a step of one update: forward, loss, backward
score, train   a step of several: a forward pass before the first of them, then the same passes
               with the proximal policy's log-probabilities kept
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.learner.head import HeadResult, LossGradient
from tasks.learner.log_ratios import k1, k3, ratio
from tasks.learner.objective import Objective
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import PolicyModel, Scorer
from tasks.learner.reports import AccumulateReport
from tasks.learner.row_report import PendingReport
from tasks.learner.rows import DeviceRow, idle_row, rows_to_compile
from tasks.learner.token_loss import TokenBatch, TokenLoss, spread
from tasks.learner.version_sums import sums_by_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A row that was scored before the first update of its step."""

    row: DeviceRow
    tokens: TokenBatch  # with the proximal policy's log-probabilities
    values: Tensor | None = None  # the critic's value of each token; None without a critic
    returns: Tensor | None = None  # what each value is to be, once all rows of the step are scored


class MicroStep:
    """Adds the gradient of one row's loss sum to the policy's sums of gradients."""

    def __init__(
        self,
        objective: Objective,
        temperature: float,
        policy: PolicyModel,
        reference: Scorer | None,
    ) -> None:
        self._objective, self._temperature = objective, temperature
        self._policy, self._reference = policy, reference

    def run(self, row: DeviceRow) -> PendingReport:
        """Train a row; returns statistics and times, without groups, responses, normaliser."""
        started = time.time()
        tokens = self._token_batch(row)
        result = self._backward(row, tokens)
        clips = self._objective.loss.clips
        return self._statistics(row, tokens, result, can_clip=clips, started_s=started)

    def score(self, row: DeviceRow) -> tuple[ScoredRow, PendingReport]:
        """Score a row with the current policy and the reference, for updates to come; adds no
        gradient. Returns the scored row and its report, which counts no clipped tokens: no clip
        acts before the first update."""
        started = time.time()
        tokens = self._token_batch(row)
        result = self._policy.score(row, self._temperature)
        report = self._statistics(row, tokens, result, can_clip=False, started_s=started)
        return ScoredRow(row=row, tokens=replace(tokens, proximal=result.logp)), report

    def train(self, scored: ScoredRow) -> PendingReport:
        """Add the gradient sum of a scored row. The report has the cost of this pass, and the
        distance of the policy from the proximal one. All tokens count as clippable, whatever ratio
        the loss takes."""
        started, row, proximal = time.time(), scored.row, scored.tokens.proximal
        assert proximal is not None, "a scored row has it"
        result = self._backward(row, scored.tokens)
        logp = result.logp
        with torch.no_grad():
            completed = self._objective.completed(logp, scored.tokens, row.lengths)
            explained = self._objective.loss.token_loss(logp, completed)
            sums = {
                "loss_sum": self._loss_sum(completed, result, explained),
                "num_tokens_clipped": explained.clipped.sum(),
                "num_tokens_nonfinite": (~logp.isfinite()).sum(),
                "proximal_k3_sum": k3(proximal, logp).double().sum(),
            }
        passed = AccumulateReport(num_tokens_passed=len(logp), num_tokens_clippable=len(logp))
        return PendingReport(
            known=_costs(row.batch) + passed, started_s=started, ended_s=time.time(), sums=sums
        )

    def _backward(self, row: DeviceRow, tokens: TokenBatch) -> HeadResult:
        objective = self._objective

        def by_logp(indices: Tensor, logp: Tensor) -> Tensor:
            if objective.needs_whole_responses:  # then these are all tokens, in their order
                return objective.by_logp(logp, objective.completed(logp, tokens, row.lengths))
            return objective.by_logp(logp, tokens.take(indices))

        gradient = LossGradient(
            by_logp=by_logp,
            needs_all=objective.needs_whole_responses,
            by_entropy=objective.by_entropy(tokens),
        )
        return self._policy.score_and_backward(row, self._temperature, gradient)

    def idle(self, *, scores: bool, trains: bool) -> None:
        """Make the passes of `run`, `score` (`scores` alone) or `train` (`trains` alone) over one
        token without a loss, which adds zero. Where parameters are sharded, other ranks need this
        rank's shards even if it has nothing to train."""
        self._pass_over(idle_row(self._policy.device), scores=scores, trains=trains)

    def warm(self, max_tokens: int) -> None:
        """Make all passes over rows of every kind of at most so many tokens, so that a GPU's
        kernels are compiled before the first step. Drops the sums of gradients. Collective where
        parameters are sharded."""
        for row in rows_to_compile(self._policy.device, self._policy.window, max_tokens):
            for trains in (False, True):
                self._pass_over(row, scores=True, trains=trains)
        self._policy.parameters.discard()

    def _pass_over(self, row: DeviceRow, *, scores: bool, trains: bool) -> None:
        if scores and self._reference is not None:
            self._reference.score(row, self._temperature)
        if not trains:
            self._policy.score(row, self._temperature)
            return
        nothing = LossGradient(by_logp=lambda indices, logp: torch.zeros_like(logp))
        self._policy.score_and_backward(row, self._temperature, nothing)

    def _token_batch(self, row: DeviceRow) -> TokenBatch:
        if self._reference is None:
            return row.columns
        return replace(row.columns, reference=self._reference.score(row, self._temperature).logp)

    @torch.no_grad()
    def _statistics(
        self,
        row: DeviceRow,
        tokens: TokenBatch,
        result: HeadResult,
        *,
        can_clip: bool,
        started_s: float,
    ) -> PendingReport:
        logp, objective, lengths = result.logp, self._objective, row.lengths
        importance = ratio(logp, tokens.sampling_logp)
        completed = objective.completed(logp, tokens, lengths)
        explained = objective.loss.token_loss(logp, completed)
        mismatch = k3(tokens.sampling_logp, logp)
        is_finite = logp.isfinite() & tokens.sampling_logp.isfinite()
        clipped = explained.clipped & can_clip
        cut = clipped
        sums = {
            "loss_sum": self._loss_sum(completed, result, explained),
            "importance_sum": importance.double().sum(),
            "importance_square_sum": importance.double().square().sum(),
            "importance_max": importance.max(),
            "num_tokens_truncated": explained.truncated.sum(),
            "num_tokens_clipped": clipped.sum(),
            "num_tokens_nonfinite": (~is_finite).sum(),
            "entropy_sum": result.entropy.double().sum(),
            "mismatch_abs_sum": k1(logp, tokens.sampling_logp).abs().double().sum(),
            "mismatch_k3_sum": mismatch.double().sum(),
        }
        if tokens.reference is not None:
            sums["reference_kl_sum"] = k3(logp, tokens.reference).double().sum()
        if objective.sequence_mask.drops:
            dropped = objective.dropped(logp, tokens, lengths)
            token_dropped = spread(dropped, lengths, logp.device)
            cut = clipped | token_dropped
            sums |= {
                "num_responses_dropped": dropped.sum().to(logp.device),
                "num_tokens_dropped": token_dropped.sum(),
            }
        by_version = None
        if row.versions:
            by_version = sums_by_version(
                row.version_places, len(row.versions), cut, importance, mismatch
            )
        known = AccumulateReport(
            num_tokens_scored=len(logp),
            num_tokens_clippable=len(logp) if can_clip else 0,
            num_responses_droppable=len(lengths) if objective.sequence_mask.drops else 0,
        )
        return PendingReport(
            known=_costs(row.batch) + known,
            started_s=started_s,
            ended_s=time.time(),
            sums=sums,
            versions=row.versions,
            by_version=by_version,
            expert_tokens=self._policy.routers.count(),
        )

    def _loss_sum(self, completed: TokenBatch, result: HeadResult, own: TokenLoss) -> Tensor:
        total = self._objective.weighted_loss(result.logp, completed, own).double().sum()
        by_entropy = self._objective.by_entropy(completed)
        if by_entropy is None:
            return total
        return total + (by_entropy * result.entropy).double().sum()


def _costs(batch: PackedBatch) -> AccumulateReport:
    """A report of the tokens that a pass over a row computes."""
    num_prompt_tokens = sum(len(sample.prompt) for sample in batch.samples)
    return AccumulateReport(
        num_tokens_computed=len(batch.tokens),
        num_prompt_tokens_computed=batch.num_prompt_nodes,
        num_prompt_tokens_saved=num_prompt_tokens - batch.num_prompt_nodes,
        num_micro_batches=1,
    )
