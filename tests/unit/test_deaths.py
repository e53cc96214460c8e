"""How a process ended, in words: the signal by its name, the lines that matter, a cure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from flows.commands import demo
from flows.commands.local_stack import (
    StartingServer,
    check_running,
    interrupt,
    wait_until_served,
)
from tasks.cluster.deaths import account, manner
from tasks.cluster.nanny import NUM_KEPT, WorkerOutput

REPORT = (
    "loading",
    "Fatal Python error: Illegal instruction",
    "",
    "Current thread 0x1 (most recent call first):",
    '  File "_custom_ops.py", line 7 in cpu_attention',
    '  File "vllm_core.py", line 8 in step',
    "Extension modules: numpy, torch",
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit status 0"),
        (3, "ended with exit status 3"),
        (-4, "was killed by SIGILL"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_a_signal_has_its_name(code: int, words: str) -> None:
    assert manner(code) == words


def test_of_a_fatal_report_the_head_is_told() -> None:
    said = account(-4, REPORT, "/runs/log/engine-0.log")
    assert said.startswith(
        "its process was killed by SIGILL; it wrote last: Fatal Python error: Illegal instruction |"
        ' Current thread 0x1 (most recent call first): | File "_custom_ops.py", line 7 in'
        ' cpu_attention | File "vllm_core.py", line 8 in step; '
    )
    assert said.endswith("dtype float32 takes another; its log is /runs/log/engine-0.log")


def test_of_other_output_the_end_is_told() -> None:
    said = account(1, [f"line {row}" for row in range(9)], "log")
    assert "it wrote last: line 5 | line 6 | line 7 | line 8; mend what its last lines say" in said


def test_a_silent_process_that_was_killed_may_have_lacked_memory() -> None:
    assert account(-9, (), "log").startswith(
        "its process was killed by SIGKILL; most often the system"
    )


def test_what_a_worker_writes_is_in_its_log_and_the_last_lines_are_told(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path / "log", "engine-0")
    output.open()
    written_by(output, "for row in range(100): print(row); print('e', row, file=sys.stderr)")
    lines = output.path.read_text().splitlines()
    assert lines == [word for row in range(100) for word in (f"{row}", f"e {row}")]
    assert output.last_lines() == tuple(lines[-NUM_KEPT:])


def test_a_report_of_the_signal_that_ended_a_worker_is_in_its_log(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    written_by(output, "faulthandler.enable(); print('begun'); os.kill(os.getpid(), 4)")
    lines = output.last_lines()
    assert lines[0] == "begun"
    assert "Fatal Python error: Illegal instruction" in lines


def test_a_new_process_does_not_answer_for_the_lines_of_the_one_before(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    written_by(output, "print('the first')")
    assert output.last_lines() == ("the first",)
    output.forget()
    assert output.last_lines() == ()
    written_by(output, "print('the second')")
    assert output.last_lines() == ("the second",)
    assert output.path.read_text() == "the first\nthe second\n"


def test_a_log_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    output.path.unlink()
    assert output.last_lines() == ()


def written_by(output: WorkerOutput, program: str) -> None:
    """A process that writes into the log as a worker does."""
    begin = "import faulthandler, os, sys\nfrom tasks.cluster.nanny import write_into\n"
    code = f"{begin}write_into({str(output.path)!r})\n{program}\n"
    subprocess.run([sys.executable, "-c", code], check=False)


def test_a_server_that_died_is_named_with_its_signal_and_last_words(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("started\ndisk I/O error\n")
    with subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as server:
        server.wait()
        with pytest.raises(RuntimeError, match=r"the server is gone: .*SIGKILL.*disk I/O error"):
            check_running(server, "the server", log)


@contextmanager
def no_server(root: Path, port: int) -> Iterator[StartingServer]:
    """A server that answers at once, and none at all."""
    yield StartingServer(url="http://nowhere", environment={}, wait=lambda is_needless: None)


@pytest.fixture
def demo_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A demo without a server, whose run is a process that ends at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "starting_prefect_server", no_server)
    monkeypatch.setattr("sys.executable", "true")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("demo_command")
def test_a_demo_whose_run_is_killed_says_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "attended", lambda child, *_: child.wait() - 9)
    assert demo.main([]) == 2
    said = capsys.readouterr().err
    assert "error: the run is gone: its process was killed by SIGKILL" in said
    assert said.endswith("its log is runs\n")


@pytest.mark.usefixtures("demo_command")
def test_a_demo_may_have_its_root_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert demo.main(["--root=~/runs"]) == 0
    assert (tmp_path / "home/runs").is_dir()
    assert not (tmp_path / "~").exists()


@pytest.mark.usefixtures("demo_command")
@pytest.mark.parametrize(
    ("root", "written"), [("runs", ""), ("my runs", " --root 'my runs'")], ids=["usual", "spaces"]
)
def test_a_demo_that_is_stopped_says_how_to_go_on(
    root: str,
    written: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(child: subprocess.Popen[bytes], *_: object) -> int:
        child.wait()
        log = Path(root, "tiny-1/log/flow.log")
        log.parent.mkdir(parents=True)
        log.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM is Ctrl-C")

    monkeypatch.setattr(demo, "attended", stopped)
    assert demo.main(["--root", root]) == 130
    assert f"'rollflow demo{written} --resume tiny-1' goes on with it" in capsys.readouterr().err


def test_nobody_waits_for_the_server_of_a_run_that_has_ended() -> None:
    def served(is_needless: Callable[[], bool]) -> None:
        wait_until_served("http://127.0.0.1:9", "the Prefect server", is_needless=is_needless)

    server = StartingServer(url="http://127.0.0.1:9", environment={}, wait=served)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"]) as child:
        assert demo.attended(child, 1.0, partial(demo.announce_server, server, child)) == 2


def test_a_run_whose_server_does_not_start_is_killed() -> None:
    def fail() -> None:
        raise TimeoutError("the Prefect server did not answer")

    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(command, start_new_session=True) as child,
        pytest.raises(TimeoutError, match="did not answer"),
    ):
        demo.attended(child, 1.0, fail)
    assert child.returncode == -9


@pytest.mark.parametrize(("at_sigterm", "code"), [("SIG_DFL", -15), ("SIG_IGN", -9)])
def test_sigterm_stops_a_run_with_a_deadline(at_sigterm: str, code: int) -> None:
    stop_us = f"signal.signal(15, signal.{at_sigterm}); os.kill(os.getppid(), 15); time.sleep(600)"
    before = signal.signal(signal.SIGTERM, interrupt)
    command = [sys.executable, "-c", f"import os, signal, time; {stop_us}"]
    try:
        with (
            subprocess.Popen(command, start_new_session=True) as child,
            pytest.raises(KeyboardInterrupt),
        ):
            demo.attended(child, 1.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert child.returncode == code
