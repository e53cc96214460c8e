"""python -m flows.demo: one command from nothing to a report (what `make demo` does).

    Prefect server up -> python -m flows.start (progress in this terminal) -> Prefect server down

The training runs in a child process, so that Prefect's settings are in place before it is imported.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from flows.local_stack import PREFECT_PORT, free_port, prefect_server

STOP_S = 60  # how long a run may take to stop after Ctrl-C


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.demo", description="Run a preset with its own servers, from nothing to a report."
    )
    parser.add_argument("--preset", default="smollm2", help="named configuration (default: %(default)s); python -m flows.explain --list")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field, for example num_steps=5")
    parser.add_argument("--resume", default="", metavar="RUN_ID", help="go on with a run that was interrupted")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="artifact root (default: %(default)s)")
    parser.add_argument("--prefect-port", type=int, default=PREFECT_PORT, help="0 takes a free one (default: %(default)s)")
    options = parser.parse_args()
    command = [sys.executable, "-m", "flows.start", "--preset", options.preset, "--set", f"keep.artifact_root={options.root}"]
    for assignment in options.set:
        command += ["--set", assignment]
    if options.resume:
        command += ["--resume", options.resume]
    try:
        options.root.mkdir(parents=True, exist_ok=True)
        with prefect_server(options.root, options.prefect_port or free_port()) as environment:
            return _run(command, os.environ | environment)
    except (ValueError, RuntimeError, TimeoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The child's exit code; Ctrl-C and SIGTERM reach it as SIGTERM, and it gets time to stop its engines."""
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        return child.wait()
    except KeyboardInterrupt:
        print("\nstopping; the run can be resumed", file=sys.stderr, flush=True)
        child.terminate()
        try:
            child.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
        return 130


if __name__ == "__main__":
    sys.exit(main())
