"""The view of a run on a terminal: its last picture stands above what is printed afterwards."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from flows import terminal
from flows.terminal import TerminalView

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
    async with TerminalView("tiny-1", 2, lambda: (3, 8)) as view:
        view.note("a note")
        view.stepped(1, "short", STEP)
        await view.close()
        screen.write("THE SUMMARY")
    shown = screen.getvalue()
    assert shown.endswith("THE SUMMARY")
    last = shown[shown.rindex("step 1 of 2") :]
    assert "0.25" in last
    assert "a note" in last
    assert "3 of 8 responses" not in last


async def test_without_a_terminal_every_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with TerminalView("tiny-1", 2, lambda: None) as view:
        view.note("a note")
        view.stepped(1, "short", STEP)
    note, step = capsys.readouterr().out.splitlines()
    assert note == "a note"
    assert step.startswith("step 1/2 short reward 0.25  tokens 7")
    assert "lag" not in step


async def test_steps_that_overlap_tell_their_lag_and_who_waited(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = {"lag/mean_versions": 0.75, "stall/rollout_s": 2.5, "queue/carried_prompts": 3.0}
    async with TerminalView("tiny-1", 2, lambda: None) as view:
        view.stepped(1, "asynchronous", {**STEP, **waits})
    (step,) = capsys.readouterr().out.splitlines()
    assert step.endswith("lag 0.8  carried 3  rollout waits s 2.5  learner waits s 0.0")
