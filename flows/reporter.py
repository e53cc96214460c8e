"""Everything that tells of a run while it goes on and when it is over: MLflow, Prefect artifacts,
the terminal, the report folder.

The page of that folder is written beside the steps when a checkpoint is, but not at the very
beginning nor a moment after the last one, and at the end.
Nothing here is needed to go on with a run: it is all made from the commits, the recorded rounds and
the evaluations.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from distributed import get_client
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
from artifacts.reports.figures import RunFigures, figures_of, write_figures
from artifacts.reports.summary import RunSummary, headline, markdown, rich_summary
from artifacts.tables import spans_to_parquet
from flows.evaluate import EvaluationReport
from flows.heldout_answers import HeldoutAnswers, read_answers
from flows.output import screen
from flows.participants import Participants
from flows.prefect_pages import shown
from flows.report_folder import ReportFolder
from flows.run import OpenRun
from flows.run_warnings import run_warnings
from flows.terminal import TerminalView
from tasks.elastic.worker_history import WorkerHistory
from tasks.learner.reports import REASONS, skipped_of
from tasks.metrics.report import StepReport
from tasks.progress import artifact_key, progress_key
from tasks.rounds.round_progress import RoundProgress
from tasks.run.partial_responses import drop_partial

TABLE_COLUMNS = (
    "reward/mean",
    "rollout/response_tokens_max",
    "time/rollout_s",
    "time/train_s",
    "time/step_s",
    "queue/long_prompts",
)

# Prefect keeps every table that it was given: with all steps in each, those of 10,000 steps would
# take 10 GB
TABLE_STEPS = 100

ALARM_TAG = "rollflow.alarm"  # MLflow's tag of a run that raised one


class RunReporter:
    """Tells of one run; `async with` shows it in the terminal meanwhile."""

    def __init__(self, run: OpenRun, history: WorkerHistory) -> None:
        self._run = run
        self._journal = Journal(run.store)
        self._folder = ReportFolder(run)
        self._evaluations: dict[int, EvaluationReport] = {}
        self._rows: deque[dict[str, object]] = deque(maxlen=TABLE_STEPS)
        self._commits = list(run.commits)
        self._key = artifact_key(run.context.run_id)
        self._client = get_client()
        self._participants = Participants(run, history, self._client)
        self._view = TerminalView(
            run.context.run_id,
            run.config.num_steps,
            self._progress,
            lambda: self._participants.told(self.figures),
        )

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        for commit in self._run.commits:
            self._show(commit)
            self._run.tracker.log_step(commit.step, commit.metrics)
        await self._point_to_mlflow()
        return self

    async def _point_to_mlflow(self) -> None:
        tracker, about = (
            self._run.tracker,
            f"Parameters, metrics and plots of {self._run.context.run_id}",
        )
        if tracker.page:
            artifact = acreate_link_artifact(
                link=tracker.page,
                link_text="the run in MLflow",
                key=f"mlflow-{self._key}",
                description=about,
            )
            await shown(artifact)
        else:
            text = (
                f"Run `{tracker.run_id}` in `{tracker.uri}`. `make ui` shows what lies beside an"
                " artifact root."
            )
            await shown(
                acreate_markdown_artifact(text, key=f"mlflow-{self._key}", description=about)
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._view.__aexit__(kind, error, trace)
        await self._folder.drawn()

    @property
    def figures(self) -> tuple[Mapping[str, float], ...]:
        """The metrics of every committed step, those of earlier attempts at the run included."""
        return tuple(commit.metrics for commit in self._commits)

    @property
    def last(self) -> StepCommit | None:
        """The last committed step."""
        return self._commits[-1] if self._commits else None

    def tell_evaluation(self, step: int, report: EvaluationReport) -> None:
        """Log the held-out scores after a step, and say them, once."""
        if step in self._evaluations:
            return
        self._evaluations[step] = report
        self._run.tracker.log_metrics(step, report.metrics)
        told = (
            f"held-out reward after step {step}: {report.mean:.3f} ({len(report.scores)} prompts)"
        )
        self._view.note(told)
        get_run_logger().info(told)
        write_figures(self._run.store, self._figures_now())

    async def tell_step(self, report: StepReport, commit: StepCommit) -> None:
        """Keep the spans of a committed step, log its metrics, add its row, tell a skipped
        update."""
        self._commits.append(commit)
        self._run.store.keep(
            layout.table_file("spans", commit.step), spans_to_parquet(commit.step, report.spans)
        )
        self._journal.drop_parts(commit.step)
        drop_partial(report.plan)
        self._run.tracker.log_step(commit.step, commit.metrics)
        write_figures(self._run.store, self._figures_now())
        self._show(commit)
        await self._participants.keep(self.figures)
        if commit.checkpoint is not None:
            self._run.tracker.log_state(commit.step, self._figures_now().columns)
            await self._folder.redraw(tuple(self._commits), dict(self._evaluations))
        get_run_logger().info(
            "step=%d round=%s %s",
            commit.step,
            commit.kind,
            " ".join(f"{k}={commit.metrics.get(k, 0.0):.3f}" for k in TABLE_COLUMNS),
        )
        if (skipped := skipped_of(commit.metrics)) is not None:
            told = f"step={commit.step} update={skipped}: no update, because {REASONS[skipped]}"
            get_run_logger().warning(told)
        self._warn(commit)
        await shown(
            acreate_table_artifact(
                table=list(self._rows),
                key=f"steps-{self._key}",
                description=f"The last steps of {self._run.context.run_id}",
            )
        )

    def _warn(self, commit: StepCommit) -> None:
        """Tell the alarms that the step raised: on the terminal, in the log, and as a tag that has
        those of the whole run."""
        config = self._run.config.monitors
        raised = run_warnings(self._commits, config, self._journal, since=commit.step)
        for warned in raised:
            self._view.warn(warned.text)
            get_run_logger().warning("step=%d alarm: %s", commit.step, warned.text)
        if raised:
            warnings = run_warnings(self._commits, config, self._journal)
            self._run.tracker.tag(ALARM_TAG, "\n".join(warned.text for warned in warnings))

    def _show(self, commit: StepCommit) -> None:
        figures = {name: round(commit.metrics.get(name, 0.0), 3) for name in TABLE_COLUMNS}
        self._rows.append({"step": commit.step, "round": commit.kind, **figures})
        self._view.stepped(commit.step, commit.kind, commit.metrics)

    def _progress(self) -> list[RoundProgress]:
        """How full the round is that runs, and the evaluation if one does."""
        run_id = self._run.context.run_id
        keys = [progress_key(run_id, is_evaluation=of_one) for of_one in (False, True)]
        found = [self._client.get_metadata(key, default=None) for key in keys]
        return [RoundProgress(**filling) for filling in found if filling is not None]

    def _figures_now(self) -> RunFigures:
        evaluations = self._evaluations.items()
        heldout = {step: report.mean for step, report in evaluations if report.scores}
        return figures_of(self._run.config.num_steps, self._commits, heldout)

    async def finish(self, model: str) -> RunSummary:
        """Page, plots and summary into the report folder, MLflow and Prefect; the summary on the
        terminal. `model`: where it was exported."""
        commits = read_commits(self._run.store)
        await self._participants.keep(self.figures)
        answers = await asyncio.to_thread(read_answers, self._run.store, self._evaluations)
        summary = await self._folder.finish(commits, self._evaluations, answers, model)
        text = markdown(summary)
        self._run.tracker.log_state(len(commits), self._figures_now().columns)
        self._run.tracker.describe(f"{headline(summary)}\n\n{text}")
        await self._log_model(commits)
        about = f"What came of {self._run.context.run_id}"
        await shown(acreate_markdown_artifact(text, key=f"summary-{self._key}", description=about))
        await self._show_episodes(answers)
        await self._view.close()
        Console(file=screen()).print(rich_summary(summary))
        return summary

    async def _show_episodes(self, answers: HeldoutAnswers) -> None:
        """Held-out episodes of a run that has any."""
        if text := answers.markdown():
            about = f"Held-out episodes of {self._run.context.run_id}, before and after"
            await shown(
                acreate_markdown_artifact(text, key=f"episodes-{self._key}", description=about)
            )

    async def _log_model(self, commits: Sequence[StepCommit]) -> None:
        """The trained model into MLflow, where it is asked for. A refusal is told, and costs
        nothing: the model lies in the run's folder."""
        run, keep = self._run, self._run.config.keep
        if not keep.log_model or not commits:
            return
        digest = commits[-1].weights.digest
        refusal = await asyncio.to_thread(
            run.tracker.log_model, run.store, digest, keep.registered_model
        )
        if refusal:
            told = f"MLflow did not take the model: {refusal}; '{run.track_command}' tries again"
            self._view.note(told)
            get_run_logger().warning(told)
