"""python -m flows.commands.demo: one command from nothing to a report (what `make demo` does).

    Prefect server up -> python -m flows.commands.start (progress in this terminal) -> Prefect
    server down

The training runs in a child process, so that Prefect's settings are in place before it is imported.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from flows.commands.local_stack import PREFECT_PORT, free_port, interrupt, prefect_server
from tasks.cluster.deaths import account

STOP_S = 60.0  # how long a run may take to stop after Ctrl-C


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.commands.demo",
        description="Run a preset with its own servers, from nothing to a report.",
    )
    parser.add_argument(
        "--preset",
        default="smollm2",
        help="named configuration (default: %(default)s); python -m flows.commands.explain --list",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field, for example num_steps=5",
    )
    parser.add_argument(
        "--resume", default="", metavar="RUN_ID", help="go on with a run that was interrupted"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("runs"), help="artifact root (default: %(default)s)"
    )
    parser.add_argument(
        "--prefect-port",
        type=int,
        default=PREFECT_PORT,
        help="0 takes a free one (default: %(default)s)",
    )
    options = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "flows.commands.start",
        "--preset",
        options.preset,
        "--set",
        f"keep.artifact_root={options.root}",
    ]
    for assignment in options.set:
        command += ["--set", assignment]
    if options.resume:
        command += ["--resume", options.resume]
    signal.signal(signal.SIGTERM, interrupt)
    try:
        options.root.mkdir(parents=True, exist_ok=True)
        with prefect_server(options.root, options.prefect_port or free_port()) as environment:
            child = Popen(command, env=os.environ | environment, start_new_session=True)
            code = attended(child, STOP_S)
            if code < 0:
                raise RuntimeError(
                    f"the run is gone: {account(code, ())}; its artifacts are in {options.root}"
                )
            return code
    except KeyboardInterrupt:
        print("the run can be resumed", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, TimeoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def attended(child: Popen[bytes], stop_s: float) -> int:
    """The exit code of a child that has a session of its own.

    Ctrl-C, or SIGTERM where `interrupt` handles it, reaches the child as SIGTERM and is raised as
    KeyboardInterrupt. The child is killed when it has not stopped after stop_s, or at another one.
    """
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.terminate()
        with suppress(OSError):  # the terminal may be gone
            print("\nstopping", file=sys.stderr, flush=True)
        with suppress(TimeoutExpired):
            child.wait(timeout=stop_s)
        raise
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
