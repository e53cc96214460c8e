"""When workers come and go: PolyRL's launch script as a table, traces, and real processes that
follow one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import pytest

from flows.commands.workers import (
    WorkerCountChange,
    WorkerMove,
    WorkerProcesses,
    command_of,
    follow,
    gpus_of,
    main,
    moves,
    parser,
    step_changes,
    trace_changes,
)

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


def ended_with(code: int) -> Callable[[int], Sequence[str]]:
    """A worker that ends at once."""
    return lambda slot: (sys.executable, "-c", f"raise SystemExit({code})")


def test_the_schedule_step_is_that_of_polyrls_launch_script() -> None:
    planned = tuple(islice(moves(step_changes(1800.0, 4)), 12))
    table = [(move.at_s, move.kind, move.slot, move.present) for move in planned]
    assert table == [
        (0, "start", 0, 1),
        (1800, "start", 1, 2),
        (3600, "start", 2, 3),
        (5400, "start", 3, 4),
        (7200, "retire", 0, 3),
        (9000, "start", 0, 4),
        (10800, "retire", 1, 3),
        (12600, "start", 1, 4),
        (14400, "retire", 2, 3),
        (16200, "start", 2, 4),
        (18000, "retire", 3, 3),
        (19800, "start", 3, 4),
    ]


def test_a_trace_starts_in_the_lowest_free_place_and_retires_the_oldest() -> None:
    changes = trace_changes(["# spot", "seconds,change", "0,+1", "1.5,1", "", "2,-1", "2,+1"])
    assert [(move.at_s, move.kind, move.slot) for move in moves(changes)] == [
        (0.0, "start", 0),
        (1.5, "start", 1),
        (2.0, "retire", 0),
        (2.0, "start", 0),
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["0,+1", "1,-1", "2,-1"], "retire only workers that are there, got '2,-1' after 2"),
        (["5,+1", "4,+1"], "in order of time"),
        (["0,+2"], "must read SECONDS,+1 or SECONDS,-1, got '0,+2'"),
        (["0,+1", "soon,+1"], "got 'soon,+1'"),
        (["-5,+1", "20,+1"], "got '-5,+1'"),
        (["\ufeff0,+1", "20,+1"], "must read SECONDS"),
        (["time,change"], "it has none"),
    ],
)
def test_a_wrong_trace_is_refused(lines: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("+", r"\+")):
        trace_changes(lines)


def test_processes_follow_a_schedule() -> None:
    planned = [
        WorkerMove(at_s=0.0, kind="start", slot=0, present=1),
        WorkerMove(at_s=0.05, kind="start", slot=1, present=2),
        WorkerMove(at_s=0.1, kind="retire", slot=0, present=1),
        WorkerMove(at_s=0.15, kind="retire", slot=1, present=0),
    ]
    workers = WorkerProcesses(lambda slot: SLEEPS)
    assert follow(planned, workers, signal.SIGKILL) == 0
    assert workers.present() == ()


def test_a_worker_that_still_drains_makes_room_for_the_next_of_its_place() -> None:
    workers = WorkerProcesses(lambda slot: SLEEPS)
    workers.start(0)
    workers.start(0)
    assert workers.present() == (0,)
    workers.drain(drain_s=60.0)
    assert workers.present() == ()


def test_a_refused_worker_ends_the_schedule() -> None:
    planned = moves([WorkerCountChange(at_s=0.0, by=1), WorkerCountChange(at_s=3600.0, by=1)])
    assert follow(planned, WorkerProcesses(ended_with(2)), signal.SIGKILL) == 2


def test_a_worker_that_ends_by_itself_is_started_again_in_its_turn() -> None:
    planned = islice(moves(step_changes(0.05, 1)), 3)
    assert follow(planned, WorkerProcesses(ended_with(3)), signal.SIGKILL) == 0


def test_every_worker_has_a_name_and_devices_of_its_own() -> None:
    words = ["tcp://host:8786", "--name", "spot", "--cores-each", "2", "--gpus-each", "1"]
    options = parser().parse_args([*words, "--token-file", "token", "--drain-s", "0"])
    command = " ".join(command_of(options, 1))
    assert "flows.commands.worker tcp://host:8786 --name spot-1 --cores 2-3 --parent" in command
    assert command.endswith(
        "--token-file token --price-class spot --drain-s 0.0 --lease-s 20.0 --grace-s 60.0"
    )
    assert gpus_of(options, 1) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_plan_is_printed_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,+1\n60,-1\n")
    words = ["tcp://host:8786", "--schedule", "trace", "--trace", str(trace), "--plan"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "       0 s  start  worker 0, 1 there",
        "      60 s  retire worker 0, 0 there",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["host:8786"], "the address must begin with tcp:// or tls://, got 'host:8786'"),
        (["tcp://host:8786", "--most", "0"], "--most >= 1, got 1800 and 0"),
        (["tcp://host:8786", "--schedule", "trace", "--trace", "nowhere"], "nowhere"),
        (["tcp://host:8786", "--schedule", "trace"], "give --trace CSV"),
        (["tcp://host:8786", "--cores-each", "-1"], "--gpus-each must be >= 0, got -1 and 0"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
