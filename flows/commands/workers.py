"""rollflow workers: lend several rollout workers of this machine, which come and go by a schedule.

    schedule ──moves──▶ start: rollflow worker ADDRESS --name NAME-SLOT ...
                        retire: kill -9, or SIGTERM, which drains

    step, --most 4   +1 +1 +1 +1 -1 +1 -1 +1 ...    one change an interval, for ever
    trace            changes from a CSV file: seconds, +1 or -1

A start takes the lowest free slot; a retirement takes the oldest worker. `step` is the schedule of
PolyRL's launch script."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Literal

from artifacts.private_files import private_files
from flows.commands.options import command
from flows.commands.worker import (
    CERTIFICATES,
    add_elastic_worker_options,
    check_elastic_worker,
    given_words,
    machine_name,
)
from tasks.cluster.process_environment import python_path

DESCRIPTION = """\
Lend several rollout workers of this machine to a run, which come and go by a
schedule.

step:   one worker more every interval up to --most; then the oldest is retired
        and its place taken again in turn, as spot machines come and go
trace:  the changes of a file: lines of SECONDS,+1 or SECONDS,-1
"""
EPILOG = """\
examples:
  rollflow workers tls://HOST:8786 --certificate run.pem --interval 1800 --most 4
  rollflow workers tls://HOST:8786 --certificate run.pem --schedule trace --trace spot.csv

Ctrl-C drains all of them, a second one ends them at once. --plan prints the
beginning of the schedule and starts nothing.
"""
REFUSED = 2  # exit status of a worker that the run does not take
PLANNED_MOVES = 12  # that --plan prints
SHARED = (  # options that all of them are started with
    *("token_file", "price_class", "drain_s", "lease_s", "grace_s"),
    *("spot_notice", "host", "local_directory", *CERTIFICATES),
)
CLOSES_WITHIN_S = 10.0  # a worker that has drained is gone by then
POLL_S = 0.5  # between two checks of the workers
STEPS: Mapping[str, Literal[1, -1]] = {"1": 1, "+1": 1, "-1": -1}  # as a trace writes them
SIGNAL_OF = {"kill": signal.SIGKILL, "drain": signal.SIGTERM}


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow workers",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    made.add_argument("address", help="the run's Dask scheduler: tls://HOST:8786, or tcp://...")
    made.add_argument(
        "--schedule",
        choices=("step", "trace"),
        default="step",
        help="schedule of the workers (default: %(default)s)",
    )
    made.add_argument(
        "--interval",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="seconds between two changes of the schedule step (default: %(default)g)",
    )
    made.add_argument(
        "--most",
        type=int,
        default=4,
        help="maximum number of workers at a time (default: %(default)s)",
    )
    made.add_argument("--trace", default="", metavar="CSV", help="file for --schedule trace")
    made.add_argument(
        "--retire",
        choices=tuple(SIGNAL_OF),
        default="kill",
        help="kill: -9, as a machine is taken away; drain: SIGTERM (default: %(default)s)",
    )
    made.add_argument(
        "--name",
        default="",
        help="the workers are NAME-0, NAME-1, ... (default: from the host's name)",
    )
    made.add_argument(
        "--cores-each", type=int, default=0, metavar="N", help="bind each worker to N cores"
    )
    made.add_argument("--gpus-each", type=int, default=0, metavar="N", help="give each N GPUs")
    made.add_argument("--plan", action="store_true", help="print the schedule and end")
    add_elastic_worker_options(made)
    return made


@command(parser)
@private_files()
def main(options: Namespace) -> int:
    """Follow the schedule until Ctrl-C; exit status 2 when the run refuses a worker, too."""
    check_elastic_worker(options)
    changes = changes_of(options)
    if options.plan:
        for move in islice(moves(changes), PLANNED_MOVES):
            print(move_line(move))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workers = WorkerProcesses(
        lambda slot: command_of(options, slot), lambda slot: gpus_of(options, slot)
    )
    try:
        return follow(moves(changes), workers, SIGNAL_OF[options.retire])
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            workers.drain(options.drain_s)
        return 0
    finally:
        workers.kill()


def changes_of(options: Namespace) -> Iterable[WorkerCountChange]:
    """The changes of the chosen schedule. ValueError for options that do not fit together."""
    if min(options.cores_each, options.gpus_each) < 0:
        raise ValueError(
            "--cores-each and --gpus-each must be >= 0, got"
            f" {options.cores_each} and {options.gpus_each}; leave them out to bind nothing"
        )
    if options.schedule == "trace":
        if not options.trace:
            raise ValueError("--schedule trace needs the file of the trace; give --trace CSV")
        return trace_changes(Path(options.trace).read_text().splitlines())
    if options.interval <= 0 or options.most < 1:
        raise ValueError(
            "--interval must be > 0 and --most >= 1, got"
            f" {options.interval:g} and {options.most}; raise them"
        )
    return step_changes(options.interval, options.most)


def command_of(options: Namespace, slot: int) -> tuple[str, ...]:
    name = f"{options.name or machine_name()}-{slot}"
    first, last = slot * options.cores_each, (slot + 1) * options.cores_each - 1
    return (
        *(sys.executable, "-m", "flows.commands.worker", options.address, "--name", name),
        *(("--cores", f"{first}-{last}") if options.cores_each else ()),
        *("--parent", str(os.getpid()), *given_words(options, *SHARED)),
    )


def gpus_of(options: Namespace, slot: int) -> dict[str, str]:
    gpus = range(slot * options.gpus_each, (slot + 1) * options.gpus_each)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCountChange:
    """One worker more or one less at a moment."""

    at_s: float  # seconds since the schedule began
    by: Literal[1, -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMove:
    """The start or the retirement of the worker in one slot."""

    at_s: float  # seconds since the schedule began
    kind: Literal["start", "retire"]
    slot: int  # number of the worker on this machine, from 0
    present: int  # number of workers after the move


def step_changes(interval_s: float, max_workers: int) -> Iterator[WorkerCountChange]:
    """Add a worker every interval up to `max_workers`, then remove and add one, for ever."""
    turns: cycle[Literal[1, -1]] = cycle((-1, 1))
    for number in count():
        by = 1 if number < max_workers else next(turns)
        yield WorkerCountChange(at_s=number * interval_s, by=by)


def trace_changes(lines: Iterable[str]) -> tuple[WorkerCountChange, ...]:
    """Read the changes of a CSV file with the columns seconds and +1 or -1. ValueError for a line
    that has another form, is out of order, or retires a worker when none is left."""
    changes: list[WorkerCountChange] = []
    present = 0
    rows = csv.reader(line for line in lines if line.strip() and not line.startswith("#"))
    for number, row in enumerate(rows):
        if number == 0 and not _is_number(row[0]) and row[-1].strip() not in STEPS:
            continue
        if len(row) != 2 or not _is_number(row[0]) or row[1].strip() not in STEPS:
            raise ValueError(
                f"a line of a trace must read SECONDS,+1 or SECONDS,-1, got {','.join(row)!r};"
                " correct it"
            )
        change = WorkerCountChange(at_s=float(row[0]), by=STEPS[row[1].strip()])
        present += change.by
        if present < 0 or (changes and change.at_s < changes[-1].at_s):
            raise ValueError(
                "a trace must be in order of time and retire only workers that are there, got"
                f" {','.join(row)!r} after {len(changes)} changes; sort it, or drop the line"
            )
        changes.append(change)
    if not changes:
        raise ValueError("a trace must have a change, it has none; write lines like '0,+1'")
    return tuple(changes)


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def moves(changes: Iterable[WorkerCountChange]) -> Iterator[WorkerMove]:
    """Assign a slot to every change: the lowest free one starts, the oldest worker is retired."""
    present: list[int] = []  # slots, the oldest worker first
    for change in changes:
        if change.by > 0:
            slot = next(slot for slot in count() if slot not in present)
            present.append(slot)
        else:
            slot = present.pop(0)
        yield WorkerMove(
            at_s=change.at_s,
            kind="start" if change.by > 0 else "retire",
            slot=slot,
            present=len(present),
        )


class WorkerProcesses:
    """The processes of the workers that this command has started, by slot."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[int], Mapping[str, str]] = lambda slot: {},
    ) -> None:
        """command, environment: return the command line and added variables for a slot."""
        self._command = command
        self._environment = environment
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, slot: int) -> None:
        """Start the worker of a slot; a worker that still drains there is killed."""
        if slot in self._processes:
            self._processes[slot].kill()
            self._processes[slot].wait()
        environment = os.environ | python_path() | dict(self._environment(slot))
        self._processes[slot] = subprocess.Popen(self._command(slot), env=environment)

    def retire(self, slot: int, number: signal.Signals) -> None:
        self._processes[slot].send_signal(number)

    def present(self) -> tuple[int, ...]:
        """Slots whose worker is still running."""
        return tuple(slot for slot, process in self._processes.items() if process.poll() is None)

    def was_refused(self) -> bool:
        return any(process.poll() == REFUSED for process in self._processes.values())

    def drain(self, drain_s: float) -> None:
        """Drain all workers and wait until they have ended, for at most `drain_s` and a margin."""
        for slot in self.present():
            self.retire(slot, signal.SIGTERM)
        ends = time.monotonic() + drain_s + CLOSES_WITHIN_S
        while self.present() and time.monotonic() < ends:
            time.sleep(POLL_S)

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def follow(planned: Iterable[WorkerMove], workers: WorkerProcesses, retire: signal.Signals) -> int:
    """Make each move at its time. Returns 0, or REFUSED once the run refuses one: it would all."""
    began_s = time.monotonic()
    for move in planned:
        while (left_s := began_s + move.at_s - time.monotonic()) > 0:
            if workers.was_refused():
                return REFUSED
            time.sleep(min(POLL_S, left_s))
        print(move_line(move), file=sys.stderr, flush=True)
        if move.kind == "start":
            workers.start(move.slot)
        else:
            workers.retire(move.slot, retire)
    while workers.present():
        time.sleep(POLL_S)
    return REFUSED if workers.was_refused() else 0


def move_line(move: WorkerMove) -> str:
    return f"{move.at_s:8.0f} s  {move.kind:<7}worker {move.slot}, {move.present} there"
