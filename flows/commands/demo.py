"""rollflow demo: train from nothing to a report in one command, as `make demo` does.

all is checked -> Prefect server up     -> rollflow train (progress in this terminal) -> server down
                  its imports meanwhile -'"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from artifacts.layout import STEPS
from artifacts.private_files import private_files, users_umask
from flows.commands.local_stack import (
    StartingServer,
    add_ports,
    starting_prefect_server,
    stop_on_signals,
    wish_of,
)
from flows.commands.options import add_configuration, add_resume, command, folder
from flows.output import FLOW_LOG
from flows.stopping import stop_message
from tasks.cluster.deaths import account
from tasks.cluster.parent import kill_descendants, kill_group
from tasks.cluster.ports import held_port
from tasks.cluster.process_environment import python_path

ROOT = Path("runs")
STOP_S = 60.0  # how long a run may take to stop after Ctrl-C
POLL_S = 1.0  # between two checks of the run and its server
FILE_TIME_S = 1.0  # a file's time may lag the clock by this much


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow demo",
        description="Run a preset with its own servers, from nothing to a report.",
        epilog="example: rollflow demo --preset tiny --set num_steps=30",
    )
    add_configuration(made)
    add_resume(made)
    made.add_argument(
        "--root",
        type=folder,
        default=ROOT,
        help="artifact root; overrides the one of --settings (default: %(default)s)",
    )
    add_ports(made, ["prefect"])
    return made


@private_files()
def run(options: Namespace) -> int:
    """Start a server and the training beside it; the exit status is the training's."""
    stop_on_signals()
    began_s = time.time()
    where = "" if options.root == ROOT else f" --root {shlex.quote(str(options.root))}"
    from flows.commands.command_line import checked_configuration
    from flows.resume import nothing_left

    wish = wish_of("prefect", options.prefect_port)
    try:
        config = checked_configuration(options, str(options.root), [wish])
        options.resume = config.resume  # the whole id
        if told := nothing_left(config):
            print(told)
            return 0
        options.root.mkdir(parents=True, exist_ok=True)
        with (
            held_port(wish, partial(print, flush=True)) as port,
            starting_prefect_server(options.root, port) as server,
        ):
            print("starting the Prefect server", flush=True)
            environment = os.environ | python_path() | server.environment
            child = Popen(
                training_command(options),
                env=environment,
                start_new_session=True,
                umask=users_umask(),
            )
            stopping = partial(stopping_line, partial(flow_log, options.root, began_s))
            code = attended(
                child, STOP_S, partial(announce_server, server, child), stopping, server.keep
            )
            if code < 0:
                log = str(flow_log(options.root, began_s) or options.root)
                raise RuntimeError(f"the run is gone: {account(code, (), log)}")
        if code == 0 and config.trains:
            print(next_commands(where, plays=bool(config.environments)))
        return code
    except KeyboardInterrupt:
        if begun := flow_log(options.root, began_s):
            run_id = begun.relative_to(options.root).parts[0]
            print(f"'rollflow demo{where} --resume {run_id}' goes on with it", file=sys.stderr)
        raise


main = command(parser, RuntimeError)(run)


def next_commands(where: str, *, plays: bool) -> str:
    """What to do with a run that has ended. where: the option that names its root. plays: true if
    its answers are episodes."""
    look = "episodes last --heldout --best" if plays else "ask last --task"
    return f"next: `rollflow {look}{where}`, `rollflow ui{where}`, `rollflow init`"


def announce_server(server: StartingServer, child: Popen[bytes]) -> None:
    """Print the server's address once it answers; stop waiting when the run has ended."""
    server.wait(lambda: child.poll() is not None)
    if child.poll() is None:
        print(f"Prefect: {server.url}", flush=True)


def training_command(options: Namespace) -> list[str]:
    command = [sys.executable, "-m", "flows.commands.train", "--server-starts"]
    command += ["--parent", str(os.getpid())]
    command += ["--preset", options.preset] if options.preset else []
    command += ["--settings", options.settings] if options.settings else []
    for assignment in (f"keep.artifact_root={options.root}", *options.set):
        command += ["--set", assignment]
    return [*command, "--resume", options.resume] if options.resume else command


def flow_log(root: Path, began_s: float) -> Path | None:
    """The log of the run that began after `began_s` (Unix time); None before it has a folder."""
    begun = began_s - FILE_TIME_S
    logs = [log for log in root.glob(f"*/log/{FLOW_LOG}") if log.stat().st_mtime >= begun]
    return max(logs, key=lambda log: log.stat().st_mtime, default=None)


@contextmanager
def ignored_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopping_line(log: Callable[[], Path | None]) -> str:
    """The line that tells how far a run is when it is asked to stop. log: finds its log."""
    begun = log()
    steps = [] if begun is None else list((begun.parents[1] / STEPS).glob("*.json"))
    return stop_message(len(steps))


def attended(
    child: Popen[bytes],
    stop_s: float,
    prepare: Callable[[], None] = lambda: None,
    stopping: Callable[[], str] = lambda: "stopping; Ctrl-C again ends at once",
    check: Callable[[], None] = lambda: None,
) -> int:
    """Wait for a child that has a session of its own, and return its exit code. `prepare` runs once
    and `check` again and again meanwhile; if one raises, the child and its descendants are killed.

    Ctrl-C, or SIGTERM where `interrupt` handles it, reaches the child as SIGTERM, prints the line
    of `stopping` and is raised. The child is killed after `stop_s` seconds, or at another Ctrl-C;
    another SIGTERM is ignored, as it is often sent to every process."""
    try:
        prepare()
        while child.poll() is None:
            check()
            with suppress(TimeoutExpired):
                child.wait(timeout=POLL_S)
        return child.wait()
    except KeyboardInterrupt:
        with ignored_signals():
            child.terminate()
            with suppress(OSError):  # the terminal may be gone
                print(f"\n{stopping()}", file=sys.stderr, flush=True)
            with suppress(TimeoutExpired):
                child.wait(timeout=stop_s)
        raise
    finally:
        if child.poll() is None:
            kill_descendants(child.pid)
            child.kill()
            child.wait()
        kill_group(child.pid)  # what it has left behind


if __name__ == "__main__":
    sys.exit(main())
