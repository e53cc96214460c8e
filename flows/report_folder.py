"""Writes the report folder of a run: its page, drawn while steps go on and once more at the end,
with plots and a summary; the final files go to MLflow, too. Drawing takes a core a second or more:
the first page is drawn FIRST_AFTER_S after the start, later ones take a small share of the time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from artifacts import layout
from artifacts.commit import StepCommit
from artifacts.reports.canvas import png
from artifacts.reports.summary import RunSummary, markdown
from flows.evaluate import Evaluations, HeldoutAnswers, read_answers
from flows.results import ALL_PAGES, RunResults
from flows.run import OpenRun
from flows.run_record import lasting_links

logger = logging.getLogger(__name__)

FIRST_AFTER_S = 20.0
DRAWING_SHARE = 0.05  # largest share of the time after the first page that drawing may take


class ReportFolder:
    """Writes the report folder of one run."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._results = RunResults(run)
        self._draws = run.config.keep.report
        self._drawing: asyncio.Task[None] | None = None
        # monotonic time from which on the next page may be drawn
        self._due_s = time.monotonic() + FIRST_AFTER_S

    async def redraw(self, commits: Sequence[StepCommit], evaluations: Evaluations) -> None:
        """Start drawing the page in a thread, if a new page is due and none is being drawn."""
        is_drawing = self._drawing is not None and not self._drawing.done()
        if not self._draws or is_drawing or time.monotonic() < self._due_s:
            return
        await self.wait_until_drawn()
        summary = self._results.summary(commits, evaluations, self._links())
        self._drawing = asyncio.create_task(
            asyncio.to_thread(self._write_page_so_far, commits, evaluations, summary)
        )

    async def wait_until_drawn(self) -> None:
        """Wait until the page that is being drawn is written; log a failure as a warning."""
        if self._drawing is None:
            return
        try:
            await self._drawing
        except Exception as error:
            logger.warning("report=%s not written reason=%s", layout.PAGE, error)
        self._drawing = None

    async def finish(
        self,
        commits: Sequence[StepCommit],
        evaluations: Evaluations,
        answers: HeldoutAnswers,
        model: str,
    ) -> RunSummary:
        """Write all report files at the end. model: where the weights were exported; empty for a
        run that does not train."""
        await self.wait_until_drawn()
        links = ({"model": model} if model else {}) | self._links()
        summary = self._results.summary(commits, evaluations, links)
        files = {"summary.md": markdown(summary).encode()}
        if self._draws:
            files |= await asyncio.to_thread(self._draw, commits, evaluations, answers, summary)
        for name, data in files.items():
            self._run.store.write(layout.report_file(name), data)
            self._run.tracker.log_file(data, f"{layout.REPORT}/{name}")
        return summary

    def _write_page_so_far(
        self, commits: Sequence[StepCommit], evaluations: Evaluations, summary: RunSummary
    ) -> None:
        began_s = time.monotonic()
        answers = read_answers(self._run.store, evaluations)
        pictures = self._results.pictures(commits, evaluations)
        page = self._results.page(commits, evaluations, answers, summary, pictures, is_over=False)
        self._run.store.write(layout.report_file(layout.PAGE), page)
        self._due_s = time.monotonic() + (time.monotonic() - began_s) / DRAWING_SHARE

    def _draw(
        self,
        commits: Sequence[StepCommit],
        evaluations: Evaluations,
        answers: HeldoutAnswers,
        summary: RunSummary,
    ) -> dict[str, bytes]:
        """Draw the last page and its pictures; returns files by name, each picture as a PNG."""
        pictures = self._results.pictures(commits, evaluations)
        page = self._results.page(commits, evaluations, answers, summary, pictures, is_over=True)
        plots = {f"{name}.png": png(figure) for name, figure in pictures.items()}
        return {layout.PAGE: page, **plots}

    def _links(self) -> dict[str, str]:
        tracker, page = self._run.tracker, self._run.local_report(layout.PAGE)
        folder = f"{self._run.store.url}/{layout.REPORT}"
        links = {"report": str(page) if page and self._draws else folder}
        links |= {"MLflow": tracker.page} if tracker.page else {}
        lasting = lasting_links(self._run.links)
        links |= {name: link for name, link in lasting.items() if "://" in link}
        return links | ({ALL_PAGES: self._run.command("ui")} if page else {})
