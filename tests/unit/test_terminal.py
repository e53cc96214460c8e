"""The view of a run on a terminal: its last picture stands above what is printed afterwards."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from flows import terminal
from flows.terminal import TerminalView, round_line
from tasks.rounds.round_progress import RoundProgress

FILLING = RoundProgress(
    step=4,
    num_wanted=8,
    num_accepted=3,
    num_complete=2,
    num_undecided=6,
    num_carried=1,
    num_running=14,
    num_unscored=0,
    version=2,
    lag=0.75,
)
STEP: Mapping[str, float] = {"reward/mean": 0.25, "rollout/tokens": 7.0}


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


async def test_the_last_picture_stands_above_what_is_printed_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(terminal, "screen", lambda: screen)
    async with TerminalView("tiny-1", 2, lambda: [FILLING]) as view:
        view.note("a note")
        view.add_step(1, "short", STEP)
        await view.close()
        screen.write("THE SUMMARY")
    shown = screen.getvalue()
    assert shown.endswith("THE SUMMARY")
    last = shown[shown.rindex("step 1 of 2") :]
    assert "0.25" in last
    assert "a note" in last
    assert "3 of 8 groups" not in last
    (bar,) = (line for line in last.splitlines() if "━" in line)
    assert "reward" not in bar  # the table's head has a line of its own


async def test_a_scheduler_that_does_not_answer_once_freezes_no_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "screen", Screen)
    monkeypatch.setattr(terminal, "REDRAW_S", 0.0)
    asked: list[int] = []

    def progress() -> list[RoundProgress]:
        asked.append(len(asked))
        if len(asked) == 1:
            raise OSError("the scheduler does not answer")
        return [FILLING]

    async with asyncio.timeout(10), TerminalView("tiny-1", 2, progress):
        while len(asked) < 3:
            await asyncio.sleep(0)


async def test_without_a_terminal_every_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with TerminalView("tiny-1", 2, list) as view:
        view.note("a note")
        view.add_step(1, "short", STEP)
    note, step = capsys.readouterr().out.splitlines()
    assert note == "a note"
    assert step.startswith("step 1/2 short reward 0.25  tokens 7")
    assert "lag" not in step


async def test_steps_that_overlap_tell_their_lag_and_who_waited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = {
        "lag/mean_versions": 0.75,
        "train/effective_sample_fraction": 0.9,
        "train/mismatch_k3": 0.002,
        "stall/rollout_s": 2.5,
        "queue/carried_prompts": 3.0,
    }
    async with TerminalView("tiny-1", 2, list) as view:
        view.add_step(1, "asynchronous", {**STEP, **waits})
    (step,) = capsys.readouterr().out.splitlines()
    assert "lag 0.8  ess 0.90  k3 0.002  cut 0.00  carried 3" in step
    assert step.endswith("rollout waits s 2.5  learner waits s 0.0")


def test_the_line_of_a_round_tells_its_filling_and_who_waits_for_whom() -> None:
    told = round_line(FILLING)
    expected = (
        "round 4: 3 of 8 groups accepted, 6 under way (1 carried), 2 complete and waiting,"
        " 14 responses running, lag 0.8"
    )
    assert told == expected
    quiet = replace(FILLING, num_running=0)
    assert round_line(quiet).endswith("lag 0.8, engines wait for the weights after step 3")
    served = replace(FILLING, version=3)
    assert round_line(served).endswith("the learner waits for these groups")
    full = replace(served, num_accepted=8)
    assert "wait for" not in round_line(full)
    synchronous = replace(FILLING, version=None, lag=0.0, num_running=0)
    assert "lag" not in round_line(synchronous)
    assert "wait for" not in round_line(synchronous)
    asked = replace(synchronous, is_evaluation=True)
    assert round_line(asked).startswith("evaluation after step 4: 3 of 8 groups")


async def test_a_warning_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    async with TerminalView("tiny-1", 2, list) as view:
        view.warn("k3 is too large")
    assert capsys.readouterr().out.splitlines() == ["warning: k3 is too large"]


@pytest.mark.parametrize("columns", [60, 80, 120])
async def test_a_step_is_one_line_and_a_missing_update_a_mark_told_once(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = Screen()
    monkeypatch.setattr(terminal, "screen", lambda: screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    overlapped = {"lag/mean_versions": 0.75, "train/skipped_flat": 1.0}
    async with TerminalView("tiny-1", 9, list) as view:
        for step in (1, 2, 3):
            view.add_step(step, "asynchronous", {**STEP, **overlapped})
        await view.close()
    shown = screen.getvalue()
    bare = re.sub("\x1b\\[[0-9;]*m", "", shown[shown.rindex("step 3 of 9") :])
    lines = bare.splitlines()
    assert [line.split()[:3] for line in lines[3:6]] == [
        [str(step), "asynchronous", "0.25"] for step in (1, 2, 3)
    ]
    assert all("=" in line for line in lines[3:6])
    assert lines[6].startswith("= no update: its gradient is zero")
    assert max(len(line) for line in lines[2:6]) <= columns
    assert ("carried" in lines[2]) == (columns == 120)
    assert "…" not in "".join(lines)
