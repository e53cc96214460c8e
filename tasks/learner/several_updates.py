"""A step that makes several updates: what a rank keeps of it, and how it goes over that.

    take(rows)   once for each mini-batch: a forward pass with the weights of the step's beginning
    make(step)   passes x mini-batches x (gradients ─▶ sums over ranks ─▶ one update)

The forward pass gives the log-probabilities of the proximal policy, in the very rows that are
trained, so that the first update meets ratios of exactly 1. The loss of an update is a mean over
its mini-batch alone: a sum over the mini-batch's tokens, on all ranks, over the sum of the
mini-batch's normalisers (normalisation). All updates of a step have the step's learning rate.
Leaves out how groups become mini-batches (mini_batches, split).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import MicroStep, ScoredRow
from tasks.learner.packing import PackedBatch
from tasks.learner.ranks import Ranks
from tasks.learner.reports import (
    AccumulateReport,
    MadeUpdate,
    Skipped,
    UpdateReport,
    most_telling,
)
from tasks.learner.updater import Updater


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """This rank's part of a mini-batch."""

    rows: tuple[ScoredRow, ...]
    num_idle: int  # rows that another rank has more, where ranks work in step
    normaliser: float  # what it adds to the divisor of its updates


class SeveralUpdates:
    """The mini-batches of a step on this rank."""

    def __init__(
        self, config: LearnerConfig, ranks: Ranks, micro_step: MicroStep, updater: Updater
    ) -> None:
        self._config, self._ranks = config, ranks
        self._micro_step, self._updater = micro_step, updater
        self._taken: list[MiniBatch] = []

    def take(
        self, rows: Sequence[PackedBatch], num_idle: int, normaliser: float
    ) -> AccumulateReport:
        """The next mini-batch, `num_idle` idle passes included; the statistics are those of the
        policy that the step begins with."""
        report, scored = AccumulateReport(), []
        for row in rows:
            looked, said = self._micro_step.look(row)
            scored.append(looked)
            report += said
        for _ in range(num_idle):
            self._micro_step.idle_look()
        self._taken.append(MiniBatch(rows=tuple(scored), num_idle=num_idle, normaliser=normaliser))
        return report

    def forget(self) -> None:
        """Drop all mini-batches."""
        self._taken.clear()

    def make(self, step: int) -> UpdateReport:
        """All updates of the step. Collective: every rank has taken as many mini-batches.

        A rank that fails between two of them has weights of no version, and counts as lost.
        """
        assert len(self._taken) == self._config.mini_batches, "one call for each mini-batch"
        rate = self._config.optimizer.rate(step)
        made: list[MadeUpdate] = []
        computed = AccumulateReport()
        with self._ranks.in_step():
            for mini_batch in self._taken * self._config.passes:
                report = self._gradients(mini_batch)
                made.append(self._update(mini_batch, report, rate))
                computed += report
        self.forget()
        return _report_of(step, made, rate, computed)

    def _gradients(self, mini_batch: MiniBatch) -> AccumulateReport:
        report = AccumulateReport()
        for row in mini_batch.rows:
            report += self._micro_step.train(row)
        for _ in range(mini_batch.num_idle):
            self._micro_step.idle_train()
        return report

    def _update(self, mini_batch: MiniBatch, report: AccumulateReport, rate: float) -> MadeUpdate:
        num_tokens, num_clipped, k3_sum = self._ranks.sum(
            [
                float(report.num_tokens_passed),
                float(report.num_tokens_clipped),
                report.proximal_k3_sum,
            ]
        )
        return replace(
            self._updater.make(mini_batch.normaliser, report.loss_sum, rate),
            clip_fraction=num_clipped / max(1.0, num_tokens),
            proximal_k3=k3_sum / max(1.0, num_tokens),
        )


def _report_of(
    step: int, made: Sequence[MadeUpdate], rate: float, computed: AccumulateReport
) -> UpdateReport:
    reasons: list[Skipped] = [update.skipped for update in made if update.skipped is not None]
    return UpdateReport(
        step=step,
        skipped=most_telling(reasons) if len(reasons) == len(made) else None,
        normaliser=sum(update.normaliser for update in made),
        loss=sum(update.loss for update in made) / len(made),
        grad_norm=sum(update.grad_norm for update in made) / len(made),
        learning_rate=rate,
        busy=tuple(update.busy for update in made),
        several=tuple(made),
        computed=computed,
    )
