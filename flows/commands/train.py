"""rollflow train: run the training flow in this process, on a Prefect server that is running.

Heavy imports stand inside functions: the workers of a local cluster import this file again, because
it is their main module.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from artifacts.private_files import private_files
from artifacts.proxies import bypass_proxies
from flows.commands.local_stack import wait_until_served, when_hung_up
from flows.commands.options import add_configuration, add_resume
from flows.output import Output, divert, print_line
from tasks.cluster.parent import end_with
from tasks.cluster.process_environment import first_environment, has_begun_with, python_path

PROGRAMS = ("train", "rollflow")  # names under which this command is started


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow train",
        description="Train in this process, on a Prefect server that is running.",
        epilog="example: rollflow train --preset tiny --set num_steps=5",
    )
    add_configuration(made)
    add_resume(made)
    made.add_argument(
        "--server-starts",
        action="store_true",
        help="wait for the Prefect server, which is being started",
    )
    made.add_argument(
        "--parent", type=int, metavar="PID", help="end when this process, its parent, is gone"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the flow. Exit status 0, 1 for a fault of ours, 2 for the user's, 130 if interrupted."""
    options = parser().parse_args(argv)
    if "PREFECT_API_URL" not in os.environ:
        print(
            "error: a Prefect server must be running, PREFECT_API_URL is not set; use 'rollflow"
            " demo', or 'prefect server start' and set it",
            file=sys.stderr,
        )
        return 2
    restart_with_workers_environment()
    bypass_proxies()
    stop_when_hung_up()
    output = divert()
    try:
        return run_training(options, output)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except Exception as error:  # a fault of ours: the log has where, the terminal what
        traceback.print_exc()
        output.print_error(f"{type(error).__name__}: {error}; report it, with the log")
        return 1
    finally:
        output.close()


def restart_with_workers_environment() -> None:
    """Restart with the environment of a run's workers, if needed: they are forked from here."""
    wanted = first_environment()
    if Path(sys.argv[0]).stem in PROGRAMS and not has_begun_with(wanted):
        os.execve(sys.executable, sys.orig_argv, os.environ | python_path() | wanted)


def stop_when_hung_up() -> None:
    """Make a closed terminal stop the run like SIGTERM, so that Prefect and MLflow record it."""
    when_hung_up(lambda *_: os.kill(os.getpid(), signal.SIGTERM))


@private_files()
def run_training(options: Namespace, output: Output) -> int:
    """Run the flow; exit status 2, with one sentence, for an error that the user can correct."""
    from flows.commands.command_line import assemble, checked_configuration
    from flows.config.run_config import RunConfig
    from flows.config.sentence import listed
    from flows.resume import beside_resume, nothing_left

    try:
        if not options.server_starts:  # 'rollflow demo' has checked
            checked_configuration(options)
        given = assemble(options.preset, options.resume, options.set, options.settings)
        config = RunConfig.model_validate(beside_resume(given))
        if told := nothing_left(config):
            print_line(told)
            return 0
        from flows.prefect_server import prefect_loss_explained
        from flows.train import prepare_workers, train

        prepare_workers(config)
        if options.parent is not None:  # a thread: nothing is forked from here after it
            end_with(options.parent)
        if options.server_starts:
            wait_until_served(f"{os.environ['PREFECT_API_URL']}/health", "the Prefect server")
        with prefect_loss_explained():  # the state that the flow ends in is told to it, too
            asyncio.run(train(config))
    except (ValueError, OSError, RuntimeError, TimeoutError) as error:
        output.print_error(listed(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
