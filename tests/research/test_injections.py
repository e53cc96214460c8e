"""Which processes are killed, and that nobody is looked for but among one's own."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from research.kills.descendants import (
    PR_SET_CHILD_SUBREAPER,
    adopt_orphans,
    descendants,
    is_alive,
    reap,
    worker_name,
)
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injections import AT_ONCE, LONGEST_WAIT_S, Injection, Victim, drawn, found

SLEEP = "import time; print(flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
TABLE = {
    "flow": Victim(weight=1, find=lambda run: [psutil.Process()], ends_run=True),
    "host": Victim(weight=3, find=lambda run: psutil.Process().children()),
}


@pytest.fixture
def _adopting() -> Iterator[None]:
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def run(tmp_path: Path) -> InjectedRun:
    return InjectedRun(RunOrder(root=tmp_path, name="run", preset="tiny", settings=()), {}, tuple)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_as_many_are_drawn_as_were_asked_for_and_a_seed_draws_them_again(count: int) -> None:
    injections = drawn(5, count, TABLE)
    assert injections == drawn(5, count, TABLE)
    assert sum(len(injection.victims) for injection in injections) == count
    assert all(0 <= injection.wait_s <= LONGEST_WAIT_S for injection in injections)


def test_victims_are_drawn_by_weight_some_at_once_and_the_flow_is_the_last_of_two() -> None:
    injections = drawn(0, 4000, TABLE)
    victims = Counter(name for injection in injections for name in injection.victims)
    assert 2800 < victims["host"] < 3200
    pairs = [injection for injection in injections if len(injection.victims) == 2]
    assert abs(len(pairs) / len(injections) - AT_ONCE) < 0.05
    assert {pair.victims for pair in pairs} == {
        ("host", "host"),
        ("host", "flow"),
        ("flow", "flow"),
    }


def test_nobody_is_killed_twice_at_once(run: InjectedRun) -> None:
    sleepers = [subprocess.Popen([sys.executable, "-c", SLEEP]) for _ in range(2)]
    try:
        children = {psutil.Process(each.pid) for each in sleepers}
        table, draws = {"host": Victim(weight=1, find=lambda run: list(children))}, random.Random(0)
        two = Injection(victims=("host", "host"), wait_s=0.0)
        three = Injection(victims=("host",) * 3, wait_s=0.0)
        others = set(psutil.Process().children()) - children
        assert set(found(two, table, run, draws) or ()) == children
        assert found(three, table, run, draws) is None
        assert set(descendants(others)) == children
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.usefixtures("_adopting")
def test_what_loses_its_parent_is_still_found_and_is_buried_when_it_ends() -> None:
    others = psutil.Process().children()
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (orphan,) = psutil.Process(parent.pid).children()
        parent.kill()
    assert descendants(others) == [orphan]
    assert is_alive(orphan)
    orphan.kill()
    while is_alive(orphan):
        continue
    reap(descendants(others), attended=0)
    assert descendants(others) == []


def test_a_worker_is_known_by_the_log_that_it_writes_into(tmp_path: Path) -> None:
    log = tmp_path / "engine-1.log"
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=output)
    try:
        assert worker_name(psutil.Process(process.pid)) == "engine-1"
    finally:
        process.kill()
        process.wait()


def test_a_run_that_makes_its_model_says_so(run: InjectedRun) -> None:
    told = run.folder.with_suffix(".txt")
    told.write_text("")
    run.silent_s()
    before = run.silent_s()
    os.utime(told, ns=(0, told.stat().st_mtime_ns + 1))
    assert run.silent_s() < before


def test_a_run_that_writes_nothing_stands_still_whatever_it_logs(run: InjectedRun) -> None:
    (run.folder / "log").mkdir(parents=True)
    run.silent_s()
    before = run.silent_s()
    (run.folder / "log" / "flow.log").write_text("still here\n")
    (run.folder / "status.json").write_text("{}")
    assert run.silent_s() > before
    (run.folder / "steps").mkdir()
    (run.folder / "steps" / "00001.json").write_text("{}")
    assert run.silent_s() < before
    assert run.committed == 1
    assert "step 2" in run.where()
    assert "steps/00001.json was the last" in run.where()
    assert "still here" in run.where()
