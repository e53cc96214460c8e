"""What a person sees in the terminal while a run goes on: a bar, the last steps, and how far the
present round is.

On a terminal the view is redrawn in place; elsewhere (a file, CI) every step is one line. Leaves
out the summary at the end, and what libraries write (flows.output).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from artifacts.reports.figures import progress_text
from flows.output import say, screen
from tasks.learner.reports import REASONS, skipped_of
from tasks.rounds.round_progress import RoundProgress

SHOWN_STEPS = 8
REDRAW_S = 0.5
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
# of steps that overlap: how old the weights were, what it costs, and who waited for whom
OVERLAPPED = (
    ("lag", "lag/mean_versions", "{:.1f}"),
    ("ess", "train/effective_sample_fraction", "{:.2f}"),
    ("k3", "train/mismatch_k3", "{:.3f}"),
    ("cut", "train/cut_fraction", "{:.2f}"),
    ("carried", "queue/carried_prompts", "{:.0f}"),
    ("rollout waits s", "stall/rollout_s", "{:.1f}"),
    ("learner waits s", "stall/learner_s", "{:.1f}"),
)
BLOCKS = "▁▂▃▄▅▆▇█"


class TerminalView:
    """Shows a run; `read_progress` tells how the last round that began is filled, and the
    evaluation that runs, as far as there are any."""

    def __init__(
        self,
        run_id: str,
        num_steps: int,
        read_progress: Callable[[], Sequence[RoundProgress]],
        read_hosts: Callable[[], str] = str,
    ) -> None:
        """read_hosts: the states of environment hosts and elastic workers, a line each, empty
        without."""
        self._run_id = run_id
        self._num_steps = num_steps
        self._read_progress = read_progress
        self._read_hosts = read_hosts
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the last picture as it is; what is printed from now on stands below it. May be
        called twice."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._live is not None and self._live.is_started:
            self._live.update(self._picture(()))
            self._live.transient = False
            self._live.stop()

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._say(text, "dim")

    def warn(self, text: str) -> None:
        """Something that should be looked at."""
        self._say(f"warning: {text}", "yellow")

    def _say(self, text: str, style: str) -> None:
        self._notes.append(Text(text, style=style))
        if self._live is None:
            say(text)

    def stepped(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """A step is committed."""
        self._step = step
        self._rows.append((step, kind, metrics))
        self._rewards.append(metrics["reward/mean"])
        if self._live is None:
            figures = "  ".join(
                f"{title} {form.format(metrics.get(name, 0.0))}"
                for title, name, form in columns_of([metrics])
            )
            far = progress_text(step, self._num_steps)
            told = f"step {far} {kind:<5} {figures}  {update_line(metrics)}"
            say(told.rstrip())

    async def _tick(self) -> None:
        assert self._live is not None
        while True:
            with suppress(Exception):  # the scheduler does not answer now; the next picture may do
                fillings = await asyncio.to_thread(self._read_progress)
                hosts = await asyncio.to_thread(self._read_hosts)
                self._live.update(self._picture(fillings, hosts))
            await asyncio.sleep(REDRAW_S)

    def _picture(self, fillings: Sequence[RoundProgress], hosts: str = "") -> Group:
        elapsed_s = time.monotonic() - self._started_s
        table = Table(box=None, pad_edge=False, header_style="dim")
        columns = columns_of([metrics for _, _, metrics in self._rows])
        table.add_column("step", justify="right")
        table.add_column("round", no_wrap=True)
        for title, _, _ in columns:
            table.add_column(title, justify="right")
        for step, kind, metrics in self._rows:
            figures = (form.format(metrics.get(name, 0.0)) for _, name, form in columns)
            table.add_row(str(step), kind, *figures, update_line(metrics))
        far = progress_text(self._step, self._num_steps, " of ")
        head = Text(
            f"{self._run_id}   step {far}   {elapsed_s / 60:.1f} min  "
            f" reward {sparkline(self._rewards)}"
        )
        done = min(self._step, self._num_steps)
        bar = ProgressBar(total=self._num_steps, completed=done, width=80)
        lines: list[RenderableType] = [
            head,
            Padding(bar, 0),  # which ends its line; a bar alone does not
            table,
        ]
        lines += [Text(round_line(filling), style="cyan") for filling in fillings]
        lines += [Text(hosts, style="cyan")] * bool(hosts)
        return Group(*lines, *self._notes[-3:])


def round_line(filling: RoundProgress) -> str:
    """How a round is filled, and who waits for whom, in a line."""
    parts = [f"{filling.num_accepted} of {filling.num_wanted} groups accepted"]
    if filling.num_undecided:
        carried = f" ({filling.num_carried} carried)" if filling.num_carried else ""
        parts.append(f"{filling.num_undecided} under way{carried}")
    if filling.num_complete:
        parts.append(f"{filling.num_complete} complete and waiting")
    parts.append(f"{filling.num_running} responses running")
    if filling.num_unscored:
        parts.append(f"{filling.num_unscored} unscored")
    if filling.lag is not None and filling.version is not None:
        parts.append(f"lag {filling.lag:.1f}")
    if filling.do_engines_wait:
        parts.append(f"engines wait for the weights after step {(filling.version or 0) + 1}")
    if filling.does_learner_wait:
        parts.append("the learner waits for these groups")
    what = "evaluation after step" if filling.is_evaluation else "round"
    return f"{what} {filling.step}: {', '.join(parts)}"


def columns_of(steps: Sequence[Mapping[str, float]]) -> tuple[tuple[str, str, str], ...]:
    """Title, metric and form of what is shown of these steps."""
    overlaps = any("lag/mean_versions" in metrics for metrics in steps)
    return (*COLUMNS, *OVERLAPPED) if overlaps else COLUMNS


def update_line(metrics: Mapping[str, float]) -> str:
    """What the step's line says of a policy that was not updated; nothing of one that was."""
    skipped = skipped_of(metrics)
    return "" if skipped is None else f"no update: {REASONS[skipped]}"


def sparkline(values: list[float], width: int = 40) -> str:
    """The last values as bars, 0 to 1."""
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, max(0, int(value * len(BLOCKS))))] for value in values[-width:]
    )
