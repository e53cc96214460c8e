"""Forward, loss and backward of one packed row, and what there is to say of it."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from tasks.learner.divergence import k3
from tasks.learner.head import HeadResult
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import Decoder, Policy
from tasks.learner.reports import AccumulateReport
from tasks.learner.token_loss import PolicyLoss, TokenBatch


class MicroStep:
    """Adds one row's gradient sum to the policy's flat gradients."""

    def __init__(
        self,
        loss: PolicyLoss,
        kl_coefficient: float,
        temperature: float,
        policy: Policy,
        reference: Decoder | None,
    ) -> None:
        self._loss, self._kl_coefficient, self._temperature = loss, kl_coefficient, temperature
        self._policy, self._reference = policy, reference

    def run(self, batch: PackedBatch) -> AccumulateReport:
        """Report of this row: its statistics and times, without groups, responses and
        normaliser."""
        started = time.time()
        tokens = self._token_batch(batch)

        def loss_gradient(indices: Tensor, logp: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = logp.detach().requires_grad_()
                total = self._weighted_loss(leaf, tokens.take(indices)).sum()
            return torch.autograd.grad(total, leaf)[0]

        result = self._policy.score_and_backward(batch, self._temperature, loss_gradient)
        report = self._statistics(batch, tokens, result)
        return replace(report, busy=((started, time.time()),))

    def _weighted_loss(self, logp: Tensor, tokens: TokenBatch) -> Tensor:
        loss = self._loss.token_loss(logp, tokens).loss
        if tokens.reference is not None:
            loss = loss + self._kl_coefficient * k3(logp, tokens.reference)
        return tokens.weight * loss

    def _token_batch(self, batch: PackedBatch) -> TokenBatch:
        device = self._policy.device
        lengths = torch.tensor([len(sample.response) for sample in batch.samples])
        advantages = torch.tensor(
            [sample.advantage for sample in batch.samples], dtype=torch.float32
        )
        weights = torch.tensor([sample.weight for sample in batch.samples], dtype=torch.float32)
        behaviour = torch.tensor(
            [value for sample in batch.samples for value in sample.behaviour], dtype=torch.float32
        )
        return TokenBatch(
            behaviour=behaviour.to(device),
            advantage=advantages.repeat_interleave(lengths).to(device),
            weight=weights.repeat_interleave(lengths).to(device),
            reference=self._reference.score(batch, self._temperature).logp
            if self._reference
            else None,
        )

    @torch.no_grad()
    def _statistics(
        self, batch: PackedBatch, tokens: TokenBatch, result: HeadResult
    ) -> AccumulateReport:
        logp = result.logp
        explained = self._loss.token_loss(logp, tokens)
        return AccumulateReport(
            num_tokens_scored=len(batch.targets),
            num_tokens_computed=len(batch.tokens),
            num_prompt_tokens_computed=batch.num_prompt_nodes,
            num_prompt_tokens_saved=sum(len(sample.prompt) for sample in batch.samples)
            - batch.num_prompt_nodes,
            num_micro_batches=1,
            loss_sum=float(self._weighted_loss(logp, tokens).double().sum()),
            importance_sum=float(explained.importance.double().sum()),
            importance_max=float(explained.importance.max()),
            num_tokens_truncated=int(explained.truncated.sum()),
            num_tokens_clippable=len(logp) if self._loss.clips else 0,
            num_tokens_clipped=int(explained.clipped.sum()),
            num_tokens_nonfinite=int((~(logp.isfinite() & tokens.behaviour.isfinite())).sum()),
            entropy_sum=float(result.entropy.double().sum()),
            reference_kl_sum=0.0
            if tokens.reference is None
            else float(k3(logp, tokens.reference).double().sum()),
            mismatch_abs_sum=float((logp - tokens.behaviour).abs().double().sum()),
            mismatch_k3_sum=float(k3(tokens.behaviour, logp).double().sum()),
        )
