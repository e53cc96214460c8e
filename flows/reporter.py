"""Reports a run, with its environment processes and elastic workers, to MLflow, Prefect artifacts,
the terminal and the report folder. A run does not depend on these reports: all are made from the
commits, the recorded rounds and the evaluations.

    commit ─▶ report_step: at once the list of commits ─▶ the rest, beside the next round
                 └─ waits for the step before's          └─ ends within `caught_up`

Every end of a run, by success, failure or cancellation, waits for the reports that have begun."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from distributed import Client, get_client
from prefect import get_run_logger
from prefect.artifacts import (
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_table_artifact,
)
from rich.console import Console

from artifacts import layout
from artifacts.commit import StepCommit, read_commits
from artifacts.journal import Journal
from artifacts.reports.elastic_workers import elastic_worker_rows, elastic_workers_summary
from artifacts.reports.environment_processes import (
    PoolState,
    keep_pools,
    pools_summary,
    process_rows,
)
from artifacts.reports.figures import RunFigures, figures_of, write_figures
from artifacts.reports.summary import (
    RunSummary,
    description,
    markdown,
    rich_summary,
    seeding_summary,
)
from artifacts.tables import spans_to_parquet
from flows.evaluate import EvaluationReport, read_answers
from flows.output import screen
from flows.prefect_server import publish_artifact
from flows.report_folder import ReportFolder
from flows.results import gain_of, run_warnings
from flows.run import OpenRun
from flows.terminal import TerminalView
from tasks.elastic.worker_advice import worker_advice
from tasks.elastic.worker_history import WorkerHistory
from tasks.environments.pools.status_board import reported_states
from tasks.learner.reports import REASONS, skipped_of
from tasks.metrics.report import StepReport
from tasks.metrics.step_cost import own_dollars_per_h
from tasks.progress import artifact_key, progress_key
from tasks.rounds.round_progress import RoundProgress
from tasks.run.partial_responses import drop_partial

logger = logging.getLogger(__name__)

TABLE_COLUMNS = (
    "reward/mean",
    "rollout/response_tokens_max",
    "time/rollout_s",
    "time/train_s",
    "time/step_s",
    "queue/long_prompts",
)

# Prefect keeps every version of a table: if each had all steps, 10,000 steps would take 10 GB
TABLE_STEPS = 100

ALARM_TAG = "rollflow.alarm"  # MLflow's tag with the warnings of a run
Figures = Sequence[Mapping[str, float]]  # the metrics of every committed step


@dataclass(frozen=True, slots=True)
class Participants:
    """Reports environment processes and elastic workers of one run; nothing without either."""

    run: OpenRun
    history: WorkerHistory
    client: Client

    def lines(self, figures: Figures) -> str:
        """A line each on processes, elastic workers, the seeding window and the advised number."""
        lines = (
            pools_summary(self._pools()),
            elastic_workers_summary(self.history.rows),
            seeding_summary(figures),
            self._worker_advice(figures),
        )
        return "\n".join(filter(None, lines))

    async def record(self, figures: Figures) -> None:
        """Record all participants for the page, and publish tables of them in Prefect."""
        run_id = self.run.context.run_id
        key = artifact_key(run_id)
        if pools := await asyncio.to_thread(self._pools):
            await asyncio.to_thread(keep_pools, self.run.store, pools)
            artifact = acreate_table_artifact(
                table=process_rows(pools, time.time()),
                key=f"hosts-{key}",
                description=f"Environment processes of {run_id}: {pools_summary(pools)}",
            )
            await publish_artifact(artifact)
        await asyncio.to_thread(self.history.save)
        if rows := self.history.rows:
            about = (
                f"Elastic workers of {run_id}",
                seeding_summary(figures),
                self._worker_advice(figures),
            )
            artifact = acreate_table_artifact(
                table=elastic_worker_rows(rows, time.time()),
                key=f"elastic-workers-{key}",
                description=". ".join(filter(None, about)),
            )
            await publish_artifact(artifact)

    def _pools(self) -> tuple[PoolState, ...]:
        context = self.run.context
        return reported_states(self.client, context.run_id, context.environment_pools)

    def _worker_advice(self, figures: Figures) -> str:
        return worker_advice(figures, own_dollars_per_h(self.run.context))


class RunReporter:
    """Reports one run. Use it with `async with`, which shows the run in the terminal meanwhile."""

    def __init__(self, run: OpenRun, history: WorkerHistory) -> None:
        self._run = run
        self._journal = Journal(run.store)
        self._folder = ReportFolder(run)
        self._evaluations: dict[int, EvaluationReport] = {}
        self._gain: tuple[float, float] | None = None  # interval of the held-out difference
        self._rows: deque[dict[str, object]] = deque(maxlen=TABLE_STEPS)
        self._commits = list(run.commits)
        self._key = artifact_key(run.context.run_id)
        self._client = get_client()
        self._reporting: asyncio.Task[None] | None = None  # of the last committed step
        self._participants = Participants(run, history, self._client)
        self._view = TerminalView(
            run.context.run_id,
            run.config.num_steps,
            self._progress,
            lambda: self._participants.lines(self.figures),
        )

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        for commit in self._run.commits:
            self._add_row(commit)
            self._run.tracker.log_step(commit.step, commit.metrics)
        await self._point_to_mlflow()
        return self

    async def _point_to_mlflow(self) -> None:
        tracker, key = self._run.tracker, f"mlflow-{self._key}"
        about = f"Parameters, metrics and plots of {self._run.context.run_id}"
        text = f"Run `{tracker.run_id}`: `{self._run.command('ui')}` opens it."
        await publish_artifact(
            acreate_link_artifact(tracker.page, "the run in MLflow", key=key, description=about)
            if tracker.page
            else acreate_markdown_artifact(text, key=key, description=about)
        )

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.caught_up()
        except Exception as failure:
            if error is None:
                raise
            logger.warning("the last step is not reported: %s", failure)
        finally:
            await self._view.__aexit__(kind, error, trace)
            await self._folder.wait_until_drawn()

    async def caught_up(self) -> None:
        """Wait until the last committed step is reported. Raises what its report raised, once."""
        reporting, self._reporting = self._reporting, None
        if reporting is not None:
            await asyncio.shield(reporting)

    @property
    def figures(self) -> tuple[Mapping[str, float], ...]:
        """Metrics of every committed step, also of steps that earlier attempts committed."""
        return tuple(commit.metrics for commit in self._commits)

    @property
    def last(self) -> StepCommit | None:
        """The commit of the last step; None before the first."""
        return self._commits[-1] if self._commits else None

    async def report_evaluation(self, step: int, report: EvaluationReport) -> None:
        """Log and show the held-out scores after a step; a repeated call does nothing."""
        if step in self._evaluations:
            return
        await self.caught_up()
        self._evaluations[step] = report
        gain = gain_of(self._evaluations, self._run.config.seed)
        self._gain = None if gain is None else (gain.low, gain.high)
        self._run.tracker.log_metrics(step, report.metrics)
        asked = f"({len(report.scores)} prompts)"
        each = ", ".join(f"{name} {mean:.3f}" for name, mean in report.by_adapter.items())
        told = f"{report.mean:.3f} {asked}{each and f': {each}'}"
        message = f"held-out reward after step {step}: {told}"
        self._view.note(message)
        get_run_logger().info(message)
        self._tell_of_trackers()
        write_figures(self._run.store, self._figures_now())

    async def report_step(self, report: StepReport, commit: StepCommit) -> None:
        """Begin to report a committed step, once the step before is reported: to store its spans,
        log its metrics, and show its row and warnings."""
        await self.caught_up()
        self._commits.append(commit)
        self._reporting = asyncio.create_task(self._report(report, commit))

    async def _report(self, report: StepReport, commit: StepCommit) -> None:
        await asyncio.to_thread(self._record, report, commit)
        self._add_row(commit)
        await self._participants.record(self.figures)
        if commit.checkpoint is not None:
            await self._folder.redraw(tuple(self._commits), dict(self._evaluations))
        get_run_logger().info(
            "step=%d round=%s %s",
            commit.step,
            commit.kind,
            " ".join(f"{k}={commit.metrics.get(k, 0.0):.3f}" for k in TABLE_COLUMNS),
        )
        if (skipped := skipped_of(commit.metrics)) is not None:
            get_run_logger().warning(
                f"step={commit.step} update={skipped}: no update, because {REASONS[skipped]}"
            )
        self._warn(commit)
        self._tell_of_trackers()
        key, about = f"steps-{self._key}", f"The last steps of {self._run.context.run_id}"
        await publish_artifact(
            acreate_table_artifact(table=list(self._rows), key=key, description=about)
        )

    def _record(self, report: StepReport, commit: StepCommit) -> None:
        """Write what lies in the run's folder and in MLflow, in a thread."""
        self._run.store.keep(
            layout.table_file("spans", commit.step), spans_to_parquet(commit.step, report.spans)
        )
        self._journal.drop_parts(commit.step)
        drop_partial(report.plan)
        figures = self._figures_now()
        self._run.tracker.log_step(commit.step, commit.metrics)
        if commit.checkpoint is not None:
            self._run.tracker.log_state(commit.step, figures.columns)
        write_figures(self._run.store, figures)

    def _warn(self, commit: StepCommit) -> None:
        """Show and log this step's warnings, and tag the MLflow run with all of the run."""
        config = self._run.config.monitors
        raised = run_warnings(self._commits, config, self._journal, since=commit.step)
        for warning in raised:
            self._view.warn(warning.text)
            get_run_logger().warning("step=%d alarm: %s", commit.step, warning.text)
        if raised:
            warnings = run_warnings(self._commits, config, self._journal)
            self._run.tracker.tag(ALARM_TAG, "\n".join(warning.text for warning in warnings))

    def _tell_of_trackers(self) -> None:
        for told in self._run.tracker.untold():
            self._view.warn(told)

    def _add_row(self, commit: StepCommit) -> None:
        figures = {name: round(commit.metrics.get(name, 0.0), 3) for name in TABLE_COLUMNS}
        self._rows.append({"step": commit.step, "round": commit.kind, **figures})
        self._view.add_step(commit.step, commit.kind, commit.metrics)

    def _progress(self) -> list[RoundProgress]:
        run_id = self._run.context.run_id
        keys = [progress_key(run_id, is_evaluation=of_one) for of_one in (False, True)]
        found = [self._client.get_metadata(key, default=None) for key in keys]
        return [RoundProgress(**progress) for progress in found if progress is not None]

    def _figures_now(self) -> RunFigures:
        evaluations = self._evaluations.items()
        heldout = {step: report.mean for step, report in evaluations if report.scores}
        return figures_of(self._run.config.num_steps, self._commits, heldout, self._gain)

    async def finish(self, model: str) -> RunSummary:
        """Write and print the final report. model: where the weights were exported; empty for a run
        that does not train."""
        await self.caught_up()
        commits = read_commits(self._run.store)
        await self._participants.record(self.figures)
        answers = await asyncio.to_thread(read_answers, self._run.store, self._evaluations)
        summary = await self._folder.finish(commits, self._evaluations, answers, model)
        text = markdown(summary)
        self._run.tracker.log_state(len(commits), self._figures_now().columns)
        self._run.tracker.describe(description(text))
        await self._log_model(commits)
        about = f"What came of {self._run.context.run_id}"
        await publish_artifact(
            acreate_markdown_artifact(text, key=f"summary-{self._key}", description=about)
        )
        if episodes := answers.markdown():
            key = f"episodes-{self._key}"
            about = f"Held-out episodes of {self._run.context.run_id}, before and after"
            await publish_artifact(acreate_markdown_artifact(episodes, key=key, description=about))
        await self._view.close()
        Console(file=screen()).print(rich_summary(summary))
        return summary

    async def _log_model(self, commits: Sequence[StepCommit]) -> None:
        """Log the model to MLflow if wanted. A refusal is a warning: the run has the model."""
        run, keep = self._run, self._run.config.keep
        if not keep.log_model or not commits:
            return
        digest = commits[-1].weights.digest
        refusal = await asyncio.to_thread(
            run.tracker.log_model, run.store, digest, keep.registered_model
        )
        if refusal:
            again = f"'{run.command('track')}' tries again"
            message = f"MLflow did not take the model: {refusal}; {again}"
            self._view.note(message)
            get_run_logger().warning(message)
