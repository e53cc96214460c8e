"""The terminal view of a run that is under way: a progress bar, the last steps, and the progress of
the current round.

On a terminal the view is redrawn in place; elsewhere (a file, CI) every step is one line. Leaves
out the summary at the end, and the output of libraries (`flows.output`)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from artifacts.reports.figures import progress_text
from flows.output import print_line, screen
from tasks.learner.reports import REASONS, Skipped, skipped_of
from tasks.rounds.round_progress import RoundProgress

SHOWN_STEPS = 8
REDRAW_S = 0.5
NUM_GAPS = 3  # between step, round and the mark
Column = tuple[str, str, str]  # title, metric, number format
COLUMNS = (
    ("reward", "reward/mean", "{:.2f}"),
    ("tokens", "rollout/tokens", "{:.0f}"),
    ("longest", "rollout/response_tokens_max", "{:.0f}"),
    ("rollout s", "time/rollout_s", "{:.1f}"),
    ("train s", "time/train_s", "{:.1f}"),
    ("publish s", "time/publish_s", "{:.1f}"),
    ("step s", "time/step_s", "{:.1f}"),
    ("queue", "queue/long_prompts", "{:.0f}"),
)
# further columns for steps that overlap: staleness of the weights, its cost, and waiting times
OVERLAPPED = (
    ("lag", "lag/mean_versions", "{:.1f}"),
    ("ess", "train/effective_sample_fraction", "{:.2f}"),
    ("k3", "train/mismatch_k3", "{:.3f}"),
    ("cut", "train/cut_fraction", "{:.2f}"),
    ("carried", "queue/carried_prompts", "{:.0f}"),
    ("rollout waits s", "stall/rollout_s", "{:.1f}"),
    ("learner waits s", "stall/learner_s", "{:.1f}"),
)
# behind the row of a step without an update; the reasons stand below the table
MARKS = {
    Skipped.EMPTY: "0",
    Skipped.FLAT: "=",
    Skipped.CRITIC_WARMUP: "c",
    Skipped.NONFINITE: "!",
}
BLOCKS = "▁▂▃▄▅▆▇█"


class TerminalView:
    """Shows a run in the terminal, with the last round and evaluation of `read_progress`."""

    def __init__(
        self,
        run_id: str,
        num_steps: int,
        read_progress: Callable[[], Sequence[RoundProgress]],
        read_participants: Callable[[], str] = str,
    ) -> None:
        """read_participants: returns lines on environment processes and elastic workers; empty if
        the run has none."""
        self._run_id = run_id
        self._num_steps = num_steps
        self._read_progress = read_progress
        self._read_participants = read_participants
        self._rows: deque[tuple[int, str, Mapping[str, float]]] = deque(maxlen=SHOWN_STEPS)
        self._rewards: list[float] = []
        self._notes: list[Text] = []
        self._started_s = time.monotonic()
        self._step = 0
        self._live = (
            Live(
                console=Console(file=screen()),
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if screen().isatty()
            else None
        )
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop redrawing and leave the last view above later output. May be called twice."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._live is not None and self._live.is_started:
            self._live.update(self._picture(()))
            self._live.transient = False
            self._live.stop()

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}", "yellow")

    def note(self, text: str, style: str = "dim") -> None:
        self._notes.append(Text(text, style=style))
        if self._live is None:
            print_line(text)

    def add_step(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Show a committed step as a row of the table, or as a line outside a terminal."""
        self._step = step
        self._rows.append((step, kind, metrics))
        self._rewards.append(metrics["reward/mean"])
        if self._live is None:
            figures = "  ".join(
                f"{title} {form.format(metrics.get(name, 0.0))}"
                for title, name, form in columns_of([metrics])
            )
            far = progress_text(step, self._num_steps)
            print_line(f"step {far} {kind:<5} {figures}  {update_line(metrics)}".rstrip())

    async def _tick(self) -> None:
        assert self._live is not None
        while True:
            with suppress(Exception):  # the scheduler does not answer now; the next picture may do
                rounds = await asyncio.to_thread(self._read_progress)
                participants = await asyncio.to_thread(self._read_participants)
                self._live.update(self._picture(rounds, participants))
            await asyncio.sleep(REDRAW_S)

    def _picture(self, rounds: Sequence[RoundProgress], participants: str = "") -> Group:
        elapsed_s = time.monotonic() - self._started_s
        far = progress_text(self._step, self._num_steps, " of ")
        assert self._live is not None
        width = self._live.console.width
        rewards = sparkline(self._rewards)
        head = Text(f"{self._run_id}   step {far}   {elapsed_s / 60:.1f} min   reward {rewards}")
        done = min(self._step, self._num_steps)
        bar = ProgressBar(total=self._num_steps, completed=done, width=80)
        lines: list[RenderableType] = [
            head,
            Padding(bar, 0),
            self._table(width),
        ]  # a bar alone ends no line
        skipped = dict.fromkeys(skipped_of(metrics) for *_, metrics in self._rows)
        lines += [Text(f"{MARKS[why]} no update: {REASONS[why]}", "dim") for why in skipped if why]
        lines += [Text(round_line(progress), style="cyan") for progress in rounds]
        lines += [Text(participants, style="cyan")] * bool(participants)
        return Group(*lines, *self._notes[-3:])

    def _table(self, width: int) -> Table:
        """The last steps with the figures that the terminal is wide enough for, a line each."""
        steps = [metrics for *_, metrics in self._rows]
        longest = max((len(kind) for _, kind, _ in self._rows), default=0)
        room = width - len("step") - max(longest, len("round")) - NUM_GAPS
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("step", justify="right", no_wrap=True)
        table.add_column("round", no_wrap=True)
        columns = fitting(columns_of(steps), steps, room)
        for title, _, _ in columns:
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for step, kind, metrics in self._rows:
            figures = (form.format(metrics.get(name, 0.0)) for _, name, form in columns)
            skipped = skipped_of(metrics)
            table.add_row(str(step), kind, *figures, MARKS[skipped] if skipped else "")
        return table


def fitting(
    columns: Sequence[Column], steps: Sequence[Mapping[str, float]], room: int
) -> Sequence[Column]:
    """Choose the first columns that fit into so many characters, with a gap before each."""
    for number, (title, name, form) in enumerate(columns):
        figures = [len(form.format(metrics.get(name, 0.0))) for metrics in steps]
        room -= 1 + max([len(title), *figures])
        if room < 0:
            return columns[:number]
    return columns


def round_line(progress: RoundProgress) -> str:
    """Describe on one line the progress of a round, and the waiting of engines or learner."""
    parts = [f"{progress.num_accepted} of {progress.num_wanted} groups accepted"]
    if progress.num_undecided:
        carried = f" ({progress.num_carried} carried)" if progress.num_carried else ""
        parts.append(f"{progress.num_undecided} under way{carried}")
    if progress.num_complete:
        parts.append(f"{progress.num_complete} complete and waiting")
    parts.append(f"{progress.num_running} responses running")
    if progress.num_unscored:
        parts.append(f"{progress.num_unscored} unscored")
    if progress.lag is not None and progress.version is not None:
        parts.append(f"lag {progress.lag:.1f}")
    if progress.do_engines_wait:
        parts.append(f"engines wait for the weights after step {(progress.version or 0) + 1}")
    if progress.does_learner_wait:
        parts.append("the learner waits for these groups")
    what = "evaluation after step" if progress.is_evaluation else "round"
    return f"{what} {progress.step}: {', '.join(parts)}"


def columns_of(steps: Sequence[Mapping[str, float]]) -> tuple[Column, ...]:
    """Choose the table's columns for these steps, each with title, metric and number format."""
    overlaps = any("lag/mean_versions" in metrics for metrics in steps)
    return (*COLUMNS, *OVERLAPPED) if overlaps else COLUMNS


def update_line(metrics: Mapping[str, float]) -> str:
    """The reason for a step's skipped update, for the step's line; empty if it was updated."""
    skipped = skipped_of(metrics)
    return "" if skipped is None else f"no update: {REASONS[skipped]}"


def sparkline(values: list[float], width: int = 40) -> str:
    """Draw the last `width` values as bars, one character each, on a scale from 0 to 1."""
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, max(0, int(value * len(BLOCKS))))] for value in values[-width:]
    )
