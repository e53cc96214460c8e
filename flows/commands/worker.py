"""rollflow worker: lend this machine to a running run, as a rollout worker that may leave again.

The process becomes `dask worker ...` with the flags that --print shows: no nanny, no children.
Leaves out schedules of several workers (`flows.commands.workers`).
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from artifacts.private_files import private_files
from artifacts.urls import NETWORK
from flows.commands.options import command
from tasks.cluster.certificate import TlsFiles
from tasks.cluster.ports import LOOPBACK, address_towards, interface_of
from tasks.elastic.worker_card import DRAIN_S, GRACE_S, LEASE_S, PRICE_CLASS

DESCRIPTION = """\
Lend this machine to a run that is going on, as a rollout worker that may leave
again.

The run finds it within seconds: it gets the present weights and takes part in
the round that is being played. Ctrl-C, SIGTERM or a spot notice drain it: it
gets no more requests, hands over what it has, and ends. A second Ctrl-C ends it
at once, which costs what kill -9 does.
"""
EPILOG = """\
ends with 0 when it was drained or dismissed, 2 when it was refused (the
sentence says why), 3 when the scheduler is not there. A shell loop starts it
again then, and after a crash:

  while rollflow worker tls://HOST:8786 --certificate run.pem; [ $? -ge 3 ]; do sleep 5; done

The run prints address and certificate when it starts; docs/elastic.md has recipes
for Kubernetes and spot machines.
"""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
PRELOAD = "tasks.elastic.worker_process"
OF_PRELOAD = (
    *("price_class", "token_file", "drain_s", "lease_s", "grace_s"),
    *("cores", "spot_notice", "parent"),
)
TLS = ("tls_ca_file", "tls_cert", "tls_key")
CERTIFICATES = ("certificate", *TLS)
NUM_THREADS = 2  # like every worker with an engine
FLAGS = (
    *("--no-nanny", "--nworkers", "1", "--nthreads", str(NUM_THREADS), "--no-dashboard"),
    *("--dashboard-address", f"{LOOPBACK}:0", "--memory-limit", "0"),
)
# settings of Dask that a worker without a nanny reads from its environment alone
DASK_SETTINGS = (
    "distributed.worker.profile.enabled",
    "distributed.admin.low-level-log-length",
    "distributed.admin.tick.interval",
    "distributed.admin.tick.limit",
    "distributed.admin.system-monitor.interval",
    "distributed.admin.system-monitor.disk",
    "distributed.comm.timeouts.connect",
)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow worker",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    made.add_argument("address", help="the run's Dask scheduler: tls://HOST:8786, or tcp://...")
    made.add_argument(
        "--name", default="", help="name of the worker in the run (default: host and process)"
    )
    add_elastic_worker_options(made)
    made.add_argument(
        "--cores",
        default="",
        metavar="RANGES",
        help="cores of the worker, like 0-3,6 (default: all; CUDA_VISIBLE_DEVICES chooses its"
        " GPUs)",
    )
    made.add_argument("--worker-port", type=int, metavar="PORT", help="port to listen on")
    made.add_argument(
        "--parent", type=int, metavar="PID", help="drain the worker when this process is gone"
    )
    made.add_argument("--print", action="store_true", help="print the Dask command and end")
    return made


def add_elastic_worker_options(parser: ArgumentParser) -> None:
    """Add the options that all elastic workers of one machine share."""
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="file with the run's token (default: the environment's ROLLFLOW_ELASTIC_TOKEN)",
    )
    parser.add_argument(
        "--price-class",
        default=PRICE_CLASS,
        metavar="CLASS",
        help="price class, by which the run looks up the cost of an hour (default: %(default)s)",
    )
    _seconds(parser, "--drain-s", DRAIN_S, "that the worker may take to leave")
    _seconds(parser, "--lease-s", LEASE_S, "of silence after which the worker counts as lost")
    _seconds(parser, "--grace-s", GRACE_S, "without a scheduler after which the worker ends")
    parser.add_argument(
        "--spot-notice",
        default="",
        metavar="WHERE",
        help="a file that appears, or a URL that answers, when the machine is about to go",
    )
    parser.add_argument(
        "--host",
        default="",
        help="address or name to listen on, also for passing weights on (default: the address by"
        " which this machine reaches the run; no weights are passed on)",
    )
    parser.add_argument(
        "--local-directory", default="", metavar="DIR", help="folder for weights and other files"
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="PEM",
        help="certificate file that the run named at its start",
    )
    for option, what in (("ca-file", "authority"), ("cert", "certificate"), ("key", "private key")):
        parser.add_argument(
            f"--tls-{option}", default="", metavar="PEM", help=f"{what}, if you made your own"
        )


def _seconds(parser: ArgumentParser, option: str, default: float, what: str) -> None:
    parser.add_argument(
        option,
        type=float,
        default=default,
        metavar="SECONDS",
        help=f"seconds {what} (default: %(default)g)",
    )


@command(parser)
@private_files()
def main(options: Namespace) -> int:
    check_elastic_worker(options)
    words = dask_command(options, () if options.host else listening_words(options.address))
    added = environment_of(options.cores)
    if not options.print:
        from tasks.cluster.process_environment import python_path

        environment = os.environ | python_path() | added
        os.execve(sys.executable, (sys.executable, "-m", *words), environment)
    variables = [f"{name}={shlex.quote(value)}" for name, value in added.items()]
    print(" \\\n  ".join((*variables, shlex.join(words))))
    return 0


def dask_command(options: Namespace, listening: Sequence[str] = ()) -> tuple[str, ...]:
    """The plain Dask command. listening: options for an address if no host was given."""
    if options.certificate:
        vars(options).update(dict.fromkeys(TLS, options.certificate))
    name = options.name or unique_name()
    # options of Dask stand before --preload, those of the preload behind it
    return (
        *("dask", "worker", options.address, "--name", name, *FLAGS),
        *listening,
        *("--resources", "elastic=1"),
        *given_words(options, "host", "worker_port", "local_directory", *TLS),
        *("--preload", PRELOAD, *given_words(options, *OF_PRELOAD)),
    )


def check_elastic_worker(options: Namespace) -> None:
    """ValueError for options that no elastic worker can start with."""
    NETWORK.check(vars(options), "an option")
    if not options.address.startswith(("tcp://", "tls://")):
        raise ValueError(
            f"the address must begin with tcp:// or tls://, got {options.address!r}; write"
            f" tcp://{options.address}, or with its certificate tls://{options.address}"
        )
    if options.name and not NAME.fullmatch(options.name):
        raise ValueError(
            "--name must begin with a letter and go on with letters, digits and ._-, got"
            f" {options.name!r}; choose another"
        )
    if min(options.lease_s, options.grace_s) <= 0 or options.drain_s < 0:
        raise ValueError(
            "--lease-s and --grace-s must be > 0 and --drain-s >= 0, got"
            f" {options.lease_s:g}, {options.grace_s:g} and {options.drain_s:g}; raise them"
        )
    check_certificates(options)


def check_certificates(options: Namespace) -> None:
    """ValueError for certificate options that do not fit each other or the address."""
    given = [name for name in CERTIFICATES if vars(options)[name]]
    if given not in ([], [CERTIFICATES[0]], [*TLS]):
        raise ValueError(
            "--certificate stands alone, and --tls-ca-file, --tls-cert and --tls-key go together;"
            " give all of them, or the one file that the run named at its start"
        )
    if given and not options.address.startswith("tls://"):
        raise ValueError(
            f"the address must begin with tls:// beside a certificate, got {options.address!r};"
            " write it as the run does at its start"
        )
    if given:
        authority, certificate, key = (options.certificate or vars(options)[name] for name in TLS)
        files = TlsFiles(authority=authority, certificate=certificate, key=key)
        files.check(", ".join(f"--{name.replace('_', '-')}" for name in given))


def listening_words(address: str) -> tuple[str, ...]:
    """Options to listen where this machine reaches `address`; none if it cannot be resolved."""
    own = address_towards(address)
    if own is None:
        return ()
    interface = interface_of(own)
    return ("--host", own) if interface is None or ":" in own else ("--interface", interface)


def given_words(options: Namespace, *names: str) -> tuple[str, ...]:
    """The named options as words of a command line; options that were not given are left out."""
    values = vars(options)
    chosen = ((name, values[name]) for name in names if values[name] not in ("", None))
    return tuple(
        word for name, value in chosen for word in (f"--{name.replace('_', '-')}", str(value))
    )


def environment_of(cores: str) -> dict[str, str]:
    """Environment variables that a nanny would set otherwise."""
    from tasks.cluster.dask_cluster import SETTINGS
    from tasks.cluster.devices import WorkerSpec, parse_ranges
    from tasks.cluster.process_environment import first_environment
    from tasks.elastic.worker_card import devices_here

    bound = parse_ranges(cores, cores) if cores else ()
    on_cores = devices_here() if devices_here()[0].startswith("cpu:") else ()
    spec = WorkerSpec(
        name="elastic",
        role="rollout",
        device=None,
        core_ids=bound or tuple(range(len(on_cores))),
        num_threads=NUM_THREADS,
        resources=(),
    )
    settings = {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): str(SETTINGS[name])
        for name in DASK_SETTINGS
    }
    quiet = {"DASK_LOGGING__DISTRIBUTED": "warning"}
    return first_environment() | spec.environment | settings | quiet


def unique_name() -> str:
    """A unique name of an elastic worker: the machine's, with the process id."""
    return f"{machine_name()}-{os.getpid()}"


def machine_name() -> str:
    """The common part of the names of all elastic workers of this machine."""
    return "elastic-worker-" + re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])


if __name__ == "__main__":
    sys.exit(main())
