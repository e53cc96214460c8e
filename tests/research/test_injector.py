"""Runs that are killed, stand still, fail or leave something behind, made up of a few lines each:
what is told of them."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from research.kills import injection_watch, injector
from research.kills.descendants import PR_SET_CHILD_SUBREAPER, adopt_orphans, is_alive
from research.kills.injected_records import Findings
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injections import Injection, Victim
from research.kills.injector import Injector, Told

NUM_STEPS = 6
STEPS = """
import subprocess, sys, time
from pathlib import Path
steps = Path(sys.argv[1], "steps")
steps.mkdir(parents=True, exist_ok=True)
for step in range(1, 7):
    time.sleep(0.3)
    steps.joinpath(f"{step:05d}.json").touch()
"""
STANDS_STILL = "import time; time.sleep(600)"
FAILS = "print('error: no room'); raise SystemExit(2)"
LEAVES = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {STANDS_STILL!r}])
"""
TABLE = {
    "flow": Victim(weight=1, find=lambda run: [psutil.Process(run.flow.pid)], ends_run=True),
    "nobody": Victim(weight=1, find=lambda run: []),
}
KILL = Injection(victims=("flow",), wait_s=0.0)
NOBODY = Injection(victims=("nobody",), wait_s=0.0)


class ScriptedRun(InjectedRun):
    """A run that is a few lines of Python."""

    script = STEPS

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.script, str(self.folder)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(injector, "PATIENCE_S", 3.0)
    monkeypatch.setattr(injection_watch, "GONE_S", 1.0)
    monkeypatch.setattr(injector, "examine", lambda store: Findings())
    monkeypatch.setattr(injector, "_unhealed", lambda run, watch: [])
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def told_of(root: Path, script: str, *injections: Injection) -> tuple[Told, InjectedRun]:
    order = RunOrder(root=root, name="run", preset="tiny", settings=())
    run = ScriptedRun(order, {}, partial(tuple, psutil.Process().children()))
    run.script = script
    told = Injector(TABLE, injections, 0, math.inf).play(run, NUM_STEPS)
    return told, run


def test_a_flow_that_is_killed_is_gone_on_with_until_it_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, run = told_of(tmp_path, STEPS, KILL, KILL)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("1/2 flow (run, step ")
    assert second.startswith("2/2 flow (run, step ")
    assert told.kills.total() == 2
    assert len(run.attempts) == 3
    assert run.committed == NUM_STEPS
    assert (told.hangs, told.stops, told.leftovers, told.zombies) == ([], [], set(), set())


def test_who_is_not_there_is_struck_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector, "POSTPONED_AFTER_S", 0.1)
    told, run = told_of(tmp_path, STEPS, NOBODY, KILL)
    assert [name for name, _ in told.kills] == ["flow"]
    assert run.committed == NUM_STEPS


def test_a_run_that_stands_still_is_told_with_where(tmp_path: Path) -> None:
    told, run = told_of(tmp_path, STANDS_STILL)
    (where,) = told.hangs
    assert where.startswith("run, step 1, before the first step: nothing written for 3 s")
    assert run.flow.poll() is not None


def test_a_run_that_fails_again_and_again_is_told_with_its_words(tmp_path: Path) -> None:
    told, run = told_of(tmp_path, FAILS)
    assert told.hangs == ["run ends again and again: error: no room"]
    assert len(run.attempts) == injector.MAX_STOPS


def test_what_outlives_its_run_is_told_and_ended(tmp_path: Path) -> None:
    told, run = told_of(tmp_path, LEAVES + STEPS)
    (left,) = told.leftovers
    assert "python" in left
    assert [process for process in run.look() if is_alive(process)] == []
