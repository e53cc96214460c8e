"""A process that is bound to its parent ends with it, with all that it has started, though the
parent is killed and has no word for anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tasks.cluster.parent import bound_command, kill_descendants, kill_group
from tasks.cluster.process_environment import python_path

GONE_WITHIN_S = 30.0
SLEEP = "import time; time.sleep(600)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
# a module that starts a process in a session of its own, which starts another one
BUSY = f"""
import subprocess, sys
from multiprocessing import get_context
lock = get_context("spawn").Lock()  # has a file in shared memory, and a process that tracks it
subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
print(__name__, *sys.argv[1:], lock._semlock.name, flush=True)
{SLEEP}
"""
PARENT = """
import subprocess, sys
from tasks.cluster.parent import bound_command
subprocess.run(bound_command("busy", "one", "two"), start_new_session=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "busy.py").write_text(BUSY)
    path = f"{python_path()['PYTHONPATH']}{os.pathsep}{tmp_path}"
    return os.environ | python_path() | {"PYTHONPATH": path}


def test_a_bound_module_ends_with_its_killed_parent_and_takes_all_along(
    environment: dict[str, str],
) -> None:
    """Nor does a file of theirs stay in shared memory."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        *words, lock = parent.stdout.readline().split()
        assert words == ["__main__", "one", "two"]
        assert (shared := Path(f"/dev/shm/sem.{lock[1:]}")).exists()
        started = psutil.Process(parent.pid).children(recursive=True)
        while len(started) < 4:
            started = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert psutil.wait_procs(started, GONE_WITHIN_S)[1] == []
    assert not shared.exists()


def test_one_whose_parent_has_ended_before_it_looks_ends_at_once(
    environment: dict[str, str],
) -> None:
    command = bound_command("busy")
    command[3] = "1"  # not its parent
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    assert process.wait(GONE_WITHIN_S) == 1


def test_nobody_is_killed_for_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    kill_descendants(process.pid)


def test_what_is_left_of_a_group_is_killed() -> None:
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    leader = subprocess.Popen([sys.executable, "-c", leaves], start_new_session=True)
    leader.wait()
    left = [each for each in psutil.process_iter() if os.getpgid(each.pid) == leader.pid]
    kill_group(leader.pid)
    assert len(left) == 1
    assert psutil.wait_procs(left, GONE_WITHIN_S)[1] == []
