"""Rollflow's own lines reach the terminal; everything else of the process is in a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.output import keep_log_in, print_line, screen

BEGIN = """
import logging, os, subprocess, sys, warnings
from pathlib import Path
from flows.output import divert, keep_log_in, print_line, screen
output = divert()
"""
NOISE = """
print('a bar of a library')
warnings.warn('a warning')
logging.getLogger('dask').error('a log line')
os.write(2, b'a line from C\\n')
subprocess.run(['echo', 'a child'])
"""
WORDS = ("a bar of a library", "a warning", "a log line", "a line from C", "a child")


def ran(program: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """A process that diverts its output and then does this, temporary files in that directory."""
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"},
    )


def test_only_what_is_said_reaches_the_terminal(tmp_path: Path) -> None:
    keep = f"keep_log_in(Path({str(tmp_path / 'run' / 'log')!r}))"
    done = ran(
        f"{NOISE}\nprint_line('step 1')\n{keep}\n{NOISE}\nprint_line('step 2')\noutput.close()",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("step 1\nstep 2\n", "")
    log = (tmp_path / "run/log/flow.log").read_text()
    assert [log.count(word) for word in WORDS] == [2] * len(WORDS)
    assert "step" not in log
    assert list(tmp_path.glob("*.log")) == []


def test_what_was_forked_before_the_run_had_a_folder_is_in_its_log(tmp_path: Path) -> None:
    program = (
        "ready, done = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.read(ready, 1)\n"
        "    os.write(2, b'late words\\n')\n"
        "    os._exit(0)\n"
        f"keep_log_in(Path({str(tmp_path / 'log')!r}))\n"
        "os.write(done, b'.')\n"
        "os.wait()\n"
        "output.close()"
    )
    assert (ran(program, tmp_path).stdout, ran(program, tmp_path).stderr) == ("", "")
    assert (tmp_path / "log" / "flow.log").read_text() == "late words\n" * 2


def test_an_error_is_on_the_terminal_and_names_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    done = ran(f"keep_log_in(Path({str(directory)!r}))\noutput.print_error('no room')", tmp_path)
    assert done.stdout == ""
    assert done.stderr == f"error: no room\nlog: {directory}/flow.log\n"


def test_an_error_before_the_run_has_a_folder_names_the_log_if_it_tells_anything(
    tmp_path: Path,
) -> None:
    done = ran("output.print_error('a bad value')\noutput.close()", tmp_path)
    assert done.stderr == "error: a bad value\n"
    assert list(tmp_path.iterdir()) == []
    done = ran("print('a hint')\noutput.print_error('a bad value')\noutput.close()", tmp_path)
    (log,) = tmp_path.iterdir()
    assert done.stderr == f"error: a bad value\nlog: {log}\n"
    assert log.read_text() == "a hint\n"


def test_a_resumed_run_goes_on_in_the_same_log(tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        ran(f"print({attempt!r})\nkeep_log_in(Path({str(tmp_path)!r}))", tmp_path)
    assert (tmp_path / "flow.log").read_text() == "first\nsecond\n"


def test_a_terminal_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    program = (
        "os.close(screen().fileno())\nprint_line('step 1')\noutput.print_error('x')\nsys.exit(7)"
    )
    assert ran(program, tmp_path).returncode == 7


def test_without_a_command_everything_goes_to_the_streams_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line("step 1")
    assert capsys.readouterr().out == "step 1\n"
    assert screen() is sys.stdout
    keep_log_in(tmp_path / "log")
    assert not (tmp_path / "log").exists()
