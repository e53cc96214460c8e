"""How a process ended, in words: the signal by its name, the lines that matter, a cure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from flows.commands import demo
from flows.commands.local_stack import _check_running, interrupt
from tasks.cluster.deaths import account, manner
from tasks.cluster.worker_output import NUM_KEPT, WorkerOutput

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
    said = account(-4, REPORT)
    assert said.startswith(
        "its process was killed by SIGILL; it wrote last: Fatal Python error: Illegal instruction |"
        ' Current thread 0x1 (most recent call first): | File "_custom_ops.py", line 7 in'
        ' cpu_attention | File "vllm_core.py", line 8 in step; '
    )
    assert said.endswith("dtype float32 takes another")


def test_of_other_output_the_end_is_told() -> None:
    said = account(1, [f"line {row}" for row in range(9)])
    assert "it wrote last: line 5 | line 6 | line 7 | line 8; mend what its last lines say" in said


def test_a_silent_process_that_was_killed_may_have_lacked_memory() -> None:
    assert account(-9, ()).startswith("its process was killed by SIGKILL; most often the system")


def test_what_a_worker_writes_is_passed_on_and_its_last_lines_are_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    for stream, path in output.paths.items():
        Path(path).write_text("".join(f"{stream}:{row}\n" for row in range(100)) + "end")
    lines = output.last_lines()
    assert len(lines) == NUM_KEPT + 2
    assert {line for line in lines if line.endswith("end")} == {"end"}
    assert lines[NUM_KEPT - 1] in {"1:99", "2:99"}
    end_of(output)
    told = capfd.readouterr()
    assert told.out.split() == [*(f"1:{row}" for row in range(100)), "end"]
    assert told.err.split() == [*(f"2:{row}" for row in range(100)), "end"]
    output.close()


def test_a_new_process_does_not_answer_for_the_lines_of_the_one_before(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    Path(output.paths[2]).write_text("the first\n")
    assert output.last_lines() == ("the first",)
    output.forget()
    assert output.last_lines() == ()
    end_of(output)


def test_a_worker_goes_on_when_nobody_can_hear_it(tmp_path: Path) -> None:
    """`make demo | head`: whoever read our output is gone, and more comes than a pipe holds."""
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    with own_stdout() as reader:
        os.close(reader)
        written = Thread(
            target=Path(output.paths[1]).write_text, args=("line\n" * 100_000,), daemon=True
        )
        written.start()
        written.join(timeout=20)
        assert not written.is_alive()
        end_of(output)
    assert output.last_lines() == ("line",) * NUM_KEPT


def test_a_paused_terminal_keeps_nobody_waiting_but_the_relay(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "engine-0")
    output.open()
    with own_stdout() as reader:
        fill(1)
        worker = os.open(output.paths[1], os.O_WRONLY)
        fill(worker)

        def ask() -> None:
            output.last_lines()
            fill(worker)
            output.close()

        asked = Thread(target=ask, daemon=True)
        asked.start()
        asked.join(timeout=20)
        assert not asked.is_alive()
        os.close(reader)
        os.close(worker)
        end_of(output)


@contextmanager
def own_stdout() -> Iterator[int]:
    """This process's standard output is a pipe; yields its other end."""
    before = os.dup(1)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(before, 1)
        os.close(before)


def fill(pipe: int) -> None:
    """Write until nothing goes in any more."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while os.write(pipe, b"." * 999 + b"\n"):
            pass
    os.set_blocking(pipe, True)


def end_of(output: WorkerOutput) -> None:
    """Close it and wait until everything is passed on."""
    output.close()
    for thread in threading.enumerate():
        if thread.name == "worker-output":
            thread.join(timeout=20)
            assert not thread.is_alive()


def test_a_server_that_died_is_named_with_its_signal_and_last_words(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("started\ndisk I/O error\n")
    with subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as server:
        server.wait()
        with pytest.raises(RuntimeError, match=r"the server is gone: .*SIGKILL.*disk I/O error"):
            _check_running(server, "the server", log)


class Served:
    """No server at all."""

    def __enter__(self) -> dict[str, str]:
        return {}

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def demo_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A demo without a server, whose run is a process that ends at once."""
    monkeypatch.setattr("sys.argv", ["demo", "--root", str(tmp_path)])
    monkeypatch.setattr(demo, "prefect_server", lambda root, port: Served())
    monkeypatch.setattr("sys.executable", "true")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("demo_command")
def test_a_demo_whose_run_is_killed_says_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "attended", lambda child, stop_s: child.wait() - 9)
    assert demo.main() == 2
    assert "error: the run is gone: its process was killed by SIGKILL" in capsys.readouterr().err


@pytest.mark.usefixtures("demo_command")
def test_a_demo_that_is_stopped_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(child: subprocess.Popen[bytes], stop_s: float) -> int:
        child.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM is Ctrl-C")

    monkeypatch.setattr(demo, "attended", stopped)
    assert demo.main() == 130
    assert "the run can be resumed" in capsys.readouterr().err


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
