"""rollflow workers: several rollout workers of this machine, which come and go by a schedule.

    schedule ──moves──▶ start: rollflow worker ADDRESS --name NAME-SLOT ...
                        retire: kill -9, or SIGTERM, which drains

The schedule is `flows.commands.worker_schedule`; this keeps the clock and the processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from artifacts.private_files import private_files
from flows.commands.worker import (
    CERTIFICATES,
    add_elastic_worker_options,
    check_elastic_worker,
    given_words,
    host_name,
)
from flows.commands.worker_schedule import (
    WorkerCountChange,
    WorkerMove,
    first_moves,
    moves,
    step_changes,
    trace_changes,
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
REFUSED = 2
SHOWN = 12  # moves of a plan
SHARED = (  # options that all of them are started with
    *("token_file", "price_class", "drain_s", "lease_s", "grace_s"),
    *("spot_notice", "host", "local_directory", *CERTIFICATES),
)
CLOSES_WITHIN_S = 10.0  # a worker that has drained is gone by then
LOOK_S = 0.5  # between two looks at the workers
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
        help="who comes and goes when (default: %(default)s)",
    )
    made.add_argument(
        "--interval",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="seconds between two changes of the schedule step (default: %(default)g)",
    )
    made.add_argument(
        "--most", type=int, default=4, help="workers at a time at most (default: %(default)s)"
    )
    made.add_argument("--trace", default="", metavar="CSV", help="file of the schedule trace")
    made.add_argument(
        "--retire",
        choices=tuple(SIGNAL_OF),
        default="kill",
        help="kill: -9, as a machine is taken away; drain: SIGTERM (default: %(default)s)",
    )
    made.add_argument(
        "--name", default="", help="its workers are NAME-0, ... (default: the host's)"
    )
    made.add_argument(
        "--cores-each", type=int, default=0, metavar="N", help="bind each worker to N cores"
    )
    made.add_argument("--gpus-each", type=int, default=0, metavar="N", help="give each N GPUs")
    made.add_argument("--plan", action="store_true", help="print the schedule and end")
    add_elastic_worker_options(made)
    return made


@private_files()
def main(argv: Sequence[str] | None = None) -> int:
    """Follows the schedule until Ctrl-C; 2, with a sentence, where it cannot or a worker was
    refused."""
    options = parser().parse_args(argv)
    try:
        check_elastic_worker(options)
        changes = changes_of(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.plan:
        for move in first_moves(changes, SHOWN):
            print(move_line(move))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    crew = Crew(lambda slot: command_of(options, slot), lambda slot: gpus_of(options, slot))
    try:
        return follow(moves(changes), crew, SIGNAL_OF[options.retire])
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            crew.drain(options.drain_s)
        return 0
    finally:
        crew.kill()


def changes_of(options: Namespace) -> Iterable[WorkerCountChange]:
    """The schedule that was asked for."""
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
    """How the worker of a slot is started."""
    name = f"{options.name or host_name()}-{slot}"
    first, last = slot * options.cores_each, (slot + 1) * options.cores_each - 1
    return (
        *(sys.executable, "-m", "flows.commands.worker", options.address, "--name", name),
        *(("--cores", f"{first}-{last}") if options.cores_each else ()),
        *("--parent", str(os.getpid()), *given_words(options, *SHARED)),
    )


def gpus_of(options: Namespace, slot: int) -> dict[str, str]:
    """The environment's part of it."""
    gpus = range(slot * options.gpus_each, (slot + 1) * options.gpus_each)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


class Crew:
    """The workers that were started, by slot."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[int], Mapping[str, str]] = lambda slot: {},
    ) -> None:
        """command, environment: of the worker of a slot."""
        self._command = command
        self._environment = environment
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, slot: int) -> None:
        """Start a worker; one that still drains there has had its time."""
        if slot in self._processes:
            self._processes[slot].kill()
            self._processes[slot].wait()
        environment = os.environ | python_path() | dict(self._environment(slot))
        self._processes[slot] = subprocess.Popen(self._command(slot), env=environment)

    def retire(self, slot: int, number: signal.Signals) -> None:
        self._processes[slot].send_signal(number)

    def present(self) -> tuple[int, ...]:
        """The slots whose worker has not ended."""
        return tuple(slot for slot, process in self._processes.items() if process.poll() is None)

    def was_refused(self) -> bool:
        return any(process.poll() == REFUSED for process in self._processes.values())

    def drain(self, drain_s: float) -> None:
        """Have all leave and wait until they have."""
        for slot in self.present():
            self.retire(slot, signal.SIGTERM)
        ends = time.monotonic() + drain_s + CLOSES_WITHIN_S
        while self.present() and time.monotonic() < ends:
            time.sleep(LOOK_S)

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def follow(planned: Iterable[WorkerMove], crew: Crew, retire: signal.Signals) -> int:
    """Make each move at its time, then wait until the last worker has ended; 2 as soon as one was
    refused, because the others would be."""
    began_s = time.monotonic()
    for move in planned:
        while (left_s := began_s + move.at_s - time.monotonic()) > 0:
            if crew.was_refused():
                return REFUSED
            time.sleep(min(LOOK_S, left_s))
        print(move_line(move), file=sys.stderr, flush=True)
        if move.kind == "start":
            crew.start(move.slot)
        else:
            crew.retire(move.slot, retire)
    while crew.present():
        time.sleep(LOOK_S)
    return REFUSED if crew.was_refused() else 0


def move_line(move: WorkerMove) -> str:
    """A move as a line."""
    return f"{move.at_s:8.0f} s  {move.kind:<7}worker {move.slot}, {move.present} there"


if __name__ == "__main__":
    sys.exit(main())
