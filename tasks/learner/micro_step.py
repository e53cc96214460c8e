"""The forward pass, loss and backward pass of one packed row, and the row's report.

run            a step of one update: forward, loss, backward
score, train   a step of several: a forward pass before the first of them, then the same passes
               with the proximal policy's log-probabilities kept
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.learner.head import HeadResult, LossGradient
from tasks.learner.log_ratios import k1, k3, ratio
from tasks.learner.objective import Objective
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import Decoder, PolicyModel
from tasks.learner.reports import AccumulateReport
from tasks.learner.token_loss import Lengths, TokenBatch, spread
from tasks.learner.version_sums import sums_by_version

IDLE = PackedBatch(
    tokens=(0,),
    positions=(0,),
    subtree_ends=(1,),
    predictors=(0,),
    targets=(0,),
    samples=(),
    num_prompt_nodes=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A row that was scored before the first update of its step."""

    batch: PackedBatch
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
        reference: Decoder | None,
    ) -> None:
        self._objective, self._temperature = objective, temperature
        self._policy, self._reference = policy, reference

    def run(self, batch: PackedBatch) -> AccumulateReport:
        """Train a row; returns statistics and times, without groups, responses, normaliser."""
        started = time.time()
        tokens = self._token_batch(batch)
        result = self._backward(batch, tokens)
        report = self._statistics(batch, tokens, result, can_clip=self._objective.loss.clips)
        return replace(report, busy=((started, time.time()),))

    def score(self, batch: PackedBatch) -> tuple[ScoredRow, AccumulateReport]:
        """Score a row with the current policy and the reference, for updates to come; adds no
        gradient. Returns the scored row and its report, which counts no clipped tokens: no clip
        acts before the first update."""
        started = time.time()
        tokens = self._token_batch(batch)
        result = self._policy.score(batch, self._temperature)
        report = self._statistics(batch, tokens, result, can_clip=False)
        row = ScoredRow(batch=batch, tokens=replace(tokens, proximal=result.logp))
        return row, replace(report, busy=((started, time.time()),))

    def train(self, row: ScoredRow) -> AccumulateReport:
        """Add the gradient sum of a scored row. The report has the cost of this pass, and the
        distance of the policy from the proximal one. All tokens count as clippable, whatever ratio
        the loss takes."""
        started, proximal = time.time(), row.tokens.proximal
        assert proximal is not None, "a scored row has it"
        result = self._backward(row.batch, row.tokens)
        logp = result.logp
        with torch.no_grad():
            completed = self._objective.completed(logp, row.tokens, lengths_of(row.batch))
            explained = self._objective.loss.token_loss(logp, completed)
            report = _costs(row.batch) + AccumulateReport(
                loss_sum=self._loss_sum(completed, result),
                num_tokens_passed=len(logp),
                num_tokens_clippable=len(logp),
                num_tokens_clipped=int(explained.clipped.sum()),
                num_tokens_nonfinite=int((~logp.isfinite()).sum()),
                proximal_k3_sum=float(k3(proximal, logp).double().sum()),
            )
        return replace(report, busy=((started, time.time()),))

    def _backward(self, batch: PackedBatch, tokens: TokenBatch) -> HeadResult:
        objective, lengths = self._objective, lengths_of(batch)

        def by_logp(indices: Tensor, logp: Tensor) -> Tensor:
            if objective.needs_whole_responses:  # then these are all tokens, in their order
                return objective.by_logp(logp, objective.completed(logp, tokens, lengths))
            return objective.by_logp(logp, tokens.take(indices))

        gradient = LossGradient(
            by_logp=by_logp,
            needs_all=objective.needs_whole_responses,
            by_entropy=objective.by_entropy(tokens),
        )
        return self._policy.score_and_backward(batch, self._temperature, gradient)

    def idle(self, *, scores: bool, trains: bool) -> None:
        """Make the passes of `run`, `score` (`scores` alone) or `train` (`trains` alone) over one
        token without a loss, which adds zero. Where parameters are sharded, other ranks need this
        rank's shards even if it has nothing to train."""
        if scores and self._reference is not None:
            self._reference.score(IDLE, self._temperature)
        if not trains:
            self._policy.score(IDLE, self._temperature)
            return
        nothing = LossGradient(by_logp=lambda indices, logp: torch.zeros_like(logp))
        self._policy.score_and_backward(IDLE, self._temperature, nothing)

    def _token_batch(self, batch: PackedBatch) -> TokenBatch:
        samples, lengths, device = batch.samples, lengths_of(batch), self._policy.device

        def by_token(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32).to(device)

        def by_response(values: Iterable[float]) -> Tensor:
            return spread(torch.tensor(list(values), dtype=torch.float32), lengths, device)

        reference = None
        if self._reference is not None:
            reference = self._reference.score(batch, self._temperature).logp
        return TokenBatch(
            sampling_logp=by_token(value for each in samples for value in each.sampling_logp),
            advantage=by_token(value for each in samples for value in each.token_advantages),
            reward=by_response(sample.reward for sample in samples),
            weight=by_response(sample.weight for sample in samples),
            num_tokens=by_response(map(float, lengths)),
            reference=reference,
            mean_log_ratio=None,
        )

    @torch.no_grad()
    def _statistics(
        self, batch: PackedBatch, tokens: TokenBatch, result: HeadResult, *, can_clip: bool
    ) -> AccumulateReport:
        logp, objective, lengths = result.logp, self._objective, lengths_of(batch)
        importance = ratio(logp, tokens.sampling_logp)
        completed = objective.completed(logp, tokens, lengths)
        explained = objective.loss.token_loss(logp, completed)
        clipped = explained.clipped & can_clip
        dropped = objective.dropped(logp, tokens, lengths)
        token_dropped = spread(dropped, lengths, logp.device)
        mismatch = k3(tokens.sampling_logp, logp)
        return _costs(batch) + AccumulateReport(
            num_tokens_scored=len(batch.targets),
            loss_sum=self._loss_sum(completed, result),
            importance_sum=float(importance.double().sum()),
            importance_square_sum=float(importance.double().square().sum()),
            importance_max=float(importance.max()),
            num_tokens_truncated=int(explained.truncated.sum()),
            num_tokens_clippable=len(logp) if can_clip else 0,
            num_tokens_clipped=int(clipped.sum()),
            num_responses_dropped=int(dropped.sum()),
            num_tokens_dropped=int(token_dropped.sum()),
            num_responses_droppable=len(lengths) if objective.sequence_mask.drops else 0,
            num_tokens_nonfinite=int((~(logp.isfinite() & tokens.sampling_logp.isfinite())).sum()),
            entropy_sum=float(result.entropy.double().sum()),
            reference_kl_sum=0.0
            if tokens.reference is None
            else float(k3(logp, tokens.reference).double().sum()),
            mismatch_abs_sum=float(k1(logp, tokens.sampling_logp).abs().double().sum()),
            mismatch_k3_sum=float(mismatch.double().sum()),
            by_version=sums_by_version(
                (span for sample in batch.samples for span in sample.versions),
                clipped | token_dropped,
                importance,
                mismatch,
            ),
        )

    def _loss_sum(self, completed: TokenBatch, result: HeadResult) -> float:
        total = float(self._objective.weighted_loss(result.logp, completed).double().sum())
        by_entropy = self._objective.by_entropy(completed)
        if by_entropy is None:
            return total
        return total + float((by_entropy * result.entropy).double().sum())


def _costs(batch: PackedBatch) -> AccumulateReport:
    """A report of the tokens that a pass over a row computes."""
    num_prompt_tokens = sum(len(sample.prompt) for sample in batch.samples)
    return AccumulateReport(
        num_tokens_computed=len(batch.tokens),
        num_prompt_tokens_computed=batch.num_prompt_nodes,
        num_prompt_tokens_saved=num_prompt_tokens - batch.num_prompt_nodes,
        num_micro_batches=1,
    )


def lengths_of(batch: PackedBatch) -> Lengths:
    """The number of sampled tokens of each response of a row."""
    return tuple(sample.num_sampled for sample in batch.samples)
