"""rollflow serve: take runs from Prefect's pages and from `prefect deployment run`.

    Prefect server ─▶ work pool ─▶ worker, which runs what is asked for
                               └─▶ deployments of prefect.yaml

All end with the command. Runs are kept below `runs/` of the working directory, beside the server's
data base and logs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts.private_files import private_files, users_umask
from flows.commands.demo import STOP_S, ignored_signals
from flows.commands.local_stack import (
    START_TIMEOUT_S,
    StartingServer,
    add_ports,
    check_running,
    starting_prefect_server,
    stop_on_signals,
    wish_of,
)
from flows.commands.options import command
from tasks.cluster.parent import bound_command, kill_descendants, kill_group
from tasks.cluster.ports import held_port
from tasks.cluster.process_environment import SOURCES, first_environment, python_path

FILE = SOURCES / "prefect.yaml"
TRAIN = "flows.train.train"  # entry point of a deployment that trains
ROOT = Path("runs")  # keep.artifact_root's default
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]
POOL = "rollflow"  # of prefect.yaml
WORKER_LOG = ROOT / ".prefect" / "worker.log"
# `prefect deployment run --watch` prints a run's log, which says why it failed
WATCHED = {
    "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
    "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
}
DEPLOYMENT = "tiny"  # the first to try
NUM_LINES = 5  # of a failed command's output
POLL_S = 1.0
say = partial(print, flush=True)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow serve",
        description="Start a Prefect server, a work pool with a worker, and the deployments.",
        epilog="example: rollflow serve tiny",
    )
    what = "deployments of prefect.yaml to offer (default: all that train)"
    made.add_argument("deployment", nargs="*", metavar="DEPLOYMENT", help=what)
    add_ports(made, ["prefect"])
    return made


@command(parser, RuntimeError, TimeoutError)
@private_files()
def main(options: Namespace) -> int:
    """Serve until interrupted. Exit status 0: nothing else ends what began well."""
    stop_on_signals()
    names = deployments(options.deployment)
    ROOT.mkdir(exist_ok=True)
    os.environ.update(WATCHED)
    with (
        suppress(KeyboardInterrupt),
        held_port(wish_of("prefect", options.prefect_port), say) as port,
        starting_prefect_server(ROOT, port) as server,
    ):
        say("starting the Prefect server")
        server.wait(lambda: False)
        say(f"Prefect: {server.url}")
        here = {"PWD": str(Path.cwd())}  # prefect.yaml has its runs started there
        environment = os.environ | python_path() | first_environment() | server.environment | here
        prefect(["work-pool", "create", "--type", "process", POOL], environment)
        worker = start_worker(environment)
        try:
            say(f"registering deployments: {len(names)}")
            register(names, environment)
            tell_presets(server.url, names)
            say(invitation(server, names))
            while True:
                server.keep()
                check_running(worker, "Prefect's worker", WORKER_LOG)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            say("\nstopping the worker and its runs; Ctrl-C again ends at once")
            raise
        finally:
            stop_worker(worker)
    return 0


def deployments(named: Sequence[str]) -> list[str]:
    """List the deployments to offer: those named, or all that train. ValueError for an unknown."""
    import yaml

    known = {each["name"]: each for each in yaml.safe_load(FILE.read_text())["deployments"]}
    for name in named:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            cure = f"did you mean {near[0]!r}?" if near else "correct the name"
            raise ValueError(
                f"a deployment must be one of {', '.join(known)}, got {name!r}; {cure}"
            )
    return list(named) or [name for name, each in known.items() if each["entrypoint"] == TRAIN]


def prefect(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run Prefect's command without a question. RuntimeError with its last lines if it fails,
    unless what it makes exists already."""
    done = subprocess.run(
        [*PREFECT, *words],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = f"{done.stdout}{done.stderr}".strip()
    if done.returncode and "already exists" not in said:
        last = " ".join(said.splitlines()[-NUM_LINES:])
        raise RuntimeError(f"'prefect {' '.join(words[:2])}' must succeed, it says: {last}")


def register(names: Sequence[str], environment: Mapping[str, str]) -> None:
    """Register deployments of prefect.yaml, whose runs have this working directory."""
    chosen = [word for name in names for word in ("--name", name)]
    prefect(["deploy", *chosen, "--prefect-file", str(FILE)], environment)


def tell_presets(url: str, names: Sequence[str]) -> None:
    """Have the form of every deployment that trains say what its preset has."""
    import httpx

    from flows.config.form import with_preset

    address = f"{url}/api"  # of this machine, which no proxy reaches
    with httpx.Client(base_url=address, timeout=START_TIMEOUT_S, trust_env=False) as client:
        for name in names:
            found = client.get(f"/deployments/name/train/{name}")
            if found.status_code == httpx.codes.NOT_FOUND:
                continue  # it runs another flow
            deployment = found.raise_for_status().json()
            schema = deployment["parameter_openapi_schema"]
            preset = deployment["parameters"]["config"]["preset"]
            schema["properties"]["config"] |= with_preset(schema["properties"]["config"], preset)
            changed = {"parameter_openapi_schema": schema}
            client.patch(f"/deployments/{deployment['id']}", json=changed).raise_for_status()


def start_worker(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Prefect's worker in a session of its own, with all output in a log: its flow runs are
    its children."""
    words = ("worker", "start", "--pool", POOL, "--work-queue", "default")
    with WORKER_LOG.open("ab") as log:
        return subprocess.Popen(
            bound_command("prefect", *words),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=users_umask(),
        )


def stop_worker(worker: subprocess.Popen[bytes]) -> None:
    """Stop the runs, each of which can be resumed, then the worker. All are killed after STOP_S
    seconds or at another Ctrl-C."""
    try:  # a worker that is told to stop kills its runs
        with ignored_signals(), suppress(psutil.NoSuchProcess):
            runs = psutil.Process(worker.pid).children()
            for run in runs:
                with suppress(psutil.NoSuchProcess):
                    run.terminate()
            psutil.wait_procs(runs, timeout=STOP_S)
    finally:
        kill_descendants(worker.pid)
        worker.kill()
        worker.wait()
        kill_group(worker.pid)


def invitation(server: StartingServer, names: Sequence[str]) -> str:
    """The lines that say how a run is started and where it is seen."""
    program = "prefect" if shutil.which("prefect") else Path(sys.executable).with_name("prefect")
    name = DEPLOYMENT if DEPLOYMENT in names else names[0]
    address = shlex.quote(server.environment["PREFECT_API_URL"])
    return "\n".join(
        (
            f"start a run at {server.url}/deployments, or in another terminal:",
            f"  PREFECT_API_URL={address} {program} deployment run train/{name} --watch"
            """ -p config='{"num_steps": 10}'""",
            f"runs are kept in {ROOT.resolve()}; the worker's log is {WORKER_LOG}",
            "Ctrl-C ends all.",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
