"""What a step is committed with, made of its report, its recorded rows and the commit before it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from artifacts.commit import StepCommit
from artifacts.journal import Journal
from artifacts.tables import ResponseRow
from flows.run import OpenRun
from tasks.elastic.worker_history import WorkerHistory
from tasks.metrics.report import StepReport, stage_times
from tasks.metrics.step_cost import cost_metrics
from tasks.metrics.step_metrics import episode_metrics, lengths_so_far, running_totals, step_metrics
from tasks.rewards.programs.adaptive_timeout import Anchor, merged, to_record
from tasks.rewards.registry import timeouts_of
from tasks.scheduling.parallelism import PlannerState
from tasks.scheduling.queue_state import QueueState


class StepCommitter:
    """Makes the commits of the steps of one attempt at a run."""

    def __init__(self, run: OpenRun, history: WorkerHistory) -> None:
        self._began_s = time.time()
        self._run = run
        self._history = history
        self._journal = Journal(run.store)

    def record(
        self,
        report: StepReport,
        state: QueueState,
        planner: PlannerState,
        checkpoint: str | None,
        before: StepCommit | None,
    ) -> StepCommit:
        """The step as it is committed. before: the last committed step."""
        rows = self._journal.read(report.plan.step)
        groups = tuple(self._journal.read_groups(report.plan.step, rows))
        metrics = (
            step_metrics(report, state, groups)
            | episode_metrics(report.rollout, rows)
            | cost_metrics(report, self._paid_until_s(before), self._history.workers)
        )
        if self._run.context.elastic.enabled:
            metrics |= self._history.record_step(rows)
        totals = running_totals(before.counters if before else {}, metrics, state)
        return StepCommit(
            step=report.plan.step,
            kind=report.plan.round.kind,
            weights=report.published.weights,
            queue=state.to_json(),
            seeds={"seed": self._run.config.seed},
            counters=totals,
            metrics=metrics | lengths_so_far(totals),
            timings=stage_times(report)
            | {
                "started_s": report.started_s,
                "finished_s": report.finished_s,
            },
            checkpoint=checkpoint,
            planner=planner.to_json(),
            timeouts=to_record(merged(self._timeouts(rows), report.reward.relearned)),
        )

    def _paid_until_s(self, before: StepCommit | None) -> float:
        """Until when steps have paid, Unix seconds: the end of the last one, or the beginning of
        this attempt at the run if that is later; 0 before the first."""
        return max(before.timings["finished_s"], self._began_s) if before else 0.0

    def _timeouts(self, rows: Sequence[ResponseRow]) -> dict[str, Anchor]:
        """What a step's recorded executions tell of the running times of test cases."""
        rewards = self._run.config.rewards
        return timeouts_of(
            rewards,
            [
                (row.prompt.domain, row.response.score)
                for row in rows
                if row.response.score is not None
            ],
        )
