"""A step that makes several updates, or has a critic: a rank keeps its mini-batches and passes over
them.

    take(rows)   once for each mini-batch: a forward pass with the weights of the step's beginning,
                 which gives the log-probabilities of the proximal policy
    make(step)   (advantages by the critic's values)
                 passes x mini-batches x (gradients ─▶ sums over ranks ─▶ one update)
                                         (the same for the critic)

Scoring uses the same rows as training, so that the ratios of the first update are exactly 1. The
loss of an update is a mean over its mini-batch alone. Leaves out how groups become mini-batches
(`dealing`, `split`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice

from tasks.learner.critic import Critic
from tasks.learner.gae import estimates
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import MicroStep, ScoredRow
from tasks.learner.optimizer import Updater
from tasks.learner.ranks import Ranks
from tasks.learner.reports import (
    AccumulateReport,
    CriticReport,
    MadeUpdate,
    Skipped,
    UpdateReport,
    main_skip_reason,
)
from tasks.learner.row_report import PendingReport, total
from tasks.learner.rows import DeviceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """This rank's part of a mini-batch."""

    rows: tuple[ScoredRow, ...]
    num_idle: int  # idle passes to match the rank with most rows, where ranks work in step
    normaliser: float  # what this part adds to the divisor of its updates


class SeveralUpdates:
    """Keeps this rank's mini-batches of a step, and makes the step's updates from them."""

    def __init__(
        self,
        config: LearnerConfig,
        ranks: Ranks,
        micro_step: MicroStep,
        updater: Updater,
        critic: Critic | None,
    ) -> None:
        self._config, self._ranks, self._critic = config, ranks, critic
        self._micro_step, self._updater = micro_step, updater
        self._taken: list[MiniBatch] = []

    def take(self, rows: Iterable[DeviceRow], num_idle: int, normaliser: float) -> AccumulateReport:
        """Score the rows of the next mini-batch, make `num_idle` idle passes, and keep the
        mini-batch. The report's statistics are of the policy before the step's updates."""
        pairs = [self._micro_step.score(row) for row in rows]
        scored = [scored_row for scored_row, _ in pairs]
        for _ in range(num_idle):
            self._micro_step.idle(scores=True, trains=False)
        report, started = total([pending for _, pending in pairs]), time.time()
        if self._critic is not None:
            scored = [replace(row, values=self._critic.values(row.row)) for row in scored]
            if scored:
                report += AccumulateReport(busy=((started, time.time()),))
        self._taken.append(MiniBatch(rows=tuple(scored), num_idle=num_idle, normaliser=normaliser))
        return report

    def forget(self) -> None:
        """Drop all mini-batches."""
        self._taken.clear()
        if self._critic is not None:
            self._critic.parameters.discard()

    def make(self, step: int) -> UpdateReport:
        """Make all updates of the step. Collective: every rank must have taken all mini-batches. A
        rank that fails between two updates counts as lost: its weights belong to no version."""
        assert len(self._taken) == self._config.mini_batches, "one call for each mini-batch"
        made: list[MadeUpdate] = []
        by_critic: list[MadeUpdate] = []
        computed = AccumulateReport()
        with self._ranks.in_step():
            explained = self._estimate()
            for mini_batch in self._taken * self._config.passes:
                report, update = self._learn(mini_batch, step)
                made.append(update)
                computed += report
                if self._critic is not None:
                    report, update = self._learn_values(self._critic, mini_batch, step)
                    by_critic.append(update)
                    computed += report
        self._taken.clear()
        critic = None
        if by_critic:
            critic = CriticReport(
                loss=sum(update.loss for update in by_critic) / len(by_critic),
                grad_norm=sum(update.grad_norm for update in by_critic) / len(by_critic),
                num_skipped=sum(update.skipped is not None for update in by_critic),
                explained_variance=explained,
            )
        reasons: list[Skipped] = [update.skipped for update in made if update.skipped is not None]
        return UpdateReport(
            step=step,
            skipped=main_skip_reason(reasons) if len(reasons) == len(made) else None,
            normaliser=sum(update.normaliser for update in made),
            loss=sum(update.loss for update in made) / len(made),
            grad_norm=sum(update.grad_norm for update in made) / len(made),
            learning_rate=self._config.optimizer.rate(step),
            busy=tuple(update.busy for update in (*made, *by_critic)),
            several=tuple(made),
            computed=computed,
            critic=critic,
        )

    def _estimate(self) -> float:
        """Compute the tokens' advantages from the critic's values, if there is a critic. Returns
        the share of the returns' variance that the values explain."""
        if self._critic is None:
            return 0.0
        rows = chain.from_iterable(mini_batch.rows for mini_batch in self._taken)
        estimated, explained = estimates(list(rows), self._config, self._ranks)
        left = iter(estimated)
        self._taken = [
            replace(mini_batch, rows=tuple(islice(left, len(mini_batch.rows))))
            for mini_batch in self._taken
        ]
        return explained

    def _learn(self, mini_batch: MiniBatch, step: int) -> tuple[AccumulateReport, MadeUpdate]:
        """Compute gradients and update the policy, unless the critic is still warming up."""
        if self._critic is not None and step <= self._config.critic.warmup_steps:
            now = time.time()
            return AccumulateReport(), MadeUpdate(
                skipped=Skipped.CRITIC_WARMUP,
                normaliser=mini_batch.normaliser,
                loss=0.0,
                grad_norm=0.0,
                busy=(now, now),
            )
        pending = [self._micro_step.train(row) for row in mini_batch.rows]
        for _ in range(mini_batch.num_idle):
            self._micro_step.idle(scores=False, trains=True)
        report = total(pending)
        num_tokens, num_clipped, k3_sum = self._ranks.sum(
            [report.num_tokens_passed, report.num_tokens_clipped, report.proximal_k3_sum]
        )
        update = self._updater.make(step, mini_batch.normaliser, report.loss_sum)
        return report, replace(
            update,
            clip_fraction=num_clipped / max(1.0, num_tokens),
            proximal_k3=k3_sum / max(1.0, num_tokens),
        )

    def _learn_values(
        self, critic: Critic, mini_batch: MiniBatch, step: int
    ) -> tuple[AccumulateReport, MadeUpdate]:
        """Compute gradients and update the critic."""
        pending: list[PendingReport] = []
        for row in mini_batch.rows:
            assert row.values is not None
            assert row.returns is not None
            pending.append(critic.train(row.row, row.tokens.weight, row.values, row.returns))
        report = total(pending)
        return report, critic.updater.make(step, mini_batch.normaliser, report.value_loss_sum)
