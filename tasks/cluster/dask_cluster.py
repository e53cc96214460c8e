"""Opens the Dask cluster of a run: starts one on this machine, or joins one by address. Schedules
no work."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler, SpecCluster, Worker, WorkerPlugin
from distributed.versions import error_message

from artifacts.layout import CERTIFICATE
from artifacts.private_files import keep_private
from artifacts.proxies import bypass_proxies, own_hosts
from tasks.cluster.certificate import TlsFiles, make_certificate, tls_settings
from tasks.cluster.devices import (
    COORDINATORS,
    ClusterConfig,
    WorkerSpec,
    wishes_of,
    worker_specs,
)
from tasks.cluster.fork_server import METHOD, fork_fork_server, start_fork_server, start_method
from tasks.cluster.nanny import KILLED_WITHIN_S, given_up, nanny_of
from tasks.cluster.ports import LOOPBACK, held_port
from tasks.cluster.process_environment import SAFE_PATH, first_environment, python_path

logger = logging.getLogger(__name__)

LOOK_S = 0.05  # between two polls for workers that have come
SETTINGS = {
    "distributed.nanny.pre-spawn-environ": first_environment() | SAFE_PATH,
    "distributed.worker.daemon": False,  # engines may start processes of their own
    # a long load that holds the GIL must not kill an engine
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.allowed-failures": 0,  # a task that kills its worker fails at once
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.comm.timeouts.connect": "30s",
    # time after which Dask ends the nanny of a worker that is away; its default of 15 s can end a
    # nanny while that is starting a second new process
    "distributed.deploy.lost-worker-timeout": "365 days",
    "distributed.admin.large-graph-warning-threshold": "1GiB",
    "distributed.scheduler.active-memory-manager.start": False,
    # Dask's self-monitoring: at its default rates five idle workers and a scheduler take an eighth
    # of two cores from the engines
    "distributed.worker.profile.enabled": False,  # 100 samples of every thread's stack a second
    # messages that each connection keeps for Dask's developers: 1000 by default, including those
    # that carry a task with all its arguments
    "distributed.admin.low-level-log-length": 10,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "60s",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.admin.system-monitor.disk": False,
}


# Python's last garbage collection goes over everything that torch and vLLM made, 4 s in which a
# worker does not end and is killed, and a cancelled run comes near the 30 s that Prefect gives it.
# Every process of a run imports this module.
atexit.register(gc.freeze)


class BoundedCluster(SpecCluster):  # type: ignore[misc]  # Dask is not typed
    """A SpecCluster that, unlike Dask's, has a time limit for its start and its end."""

    def __init__(self, deadline_s: float, **options: Any) -> None:  # Any: SpecCluster's options
        self._deadline_s = deadline_s
        try:
            super().__init__(**options)
        except RuntimeError as error:  # Dask's message names only the class of the nanny
            raise ClusterTooSmall(str(error.__cause__ or error)) from error

    def sync(self, function: Any, *args: Any, **kwargs: Any) -> Any:  # Any: Dask's signature
        """Run a coroutine in the cluster's loop. Raises TimeoutError after the deadline."""
        try:
            return super().sync(function, *args, **{"callback_timeout": self._deadline_s, **kwargs})
        except TimeoutError as error:
            raise TimeoutError(
                f"the workers of the local cluster must start and end within {self._deadline_s:.0f}"
                f" s ({error}); give the machine less to do, or raise deadlines.start_s"
            ) from error


class ClusterTooSmall(RuntimeError):
    """The joined cluster lacks a worker or the slots that the run needs."""


def prepare_cluster(
    config: ClusterConfig, imports: Sequence[str] = (), engine_imports: Sequence[str] = ()
) -> None:
    """Start the fork server for the workers of `open_cluster`, so that its imports begin early;
    does nothing if workers will not be forked. Call it while this process has a single thread: the
    server is then a fork that shares `imports` with it, and imports `engine_imports` itself."""
    specs = worker_specs(config)
    if config.scheduler_address is None and start_method(specs) == "forkserver":
        with dask.config.set({METHOD: "forkserver"}):
            fork_fork_server((__name__, *imports), _environment_of(specs[0]), engine_imports)


@contextmanager
def open_cluster(
    config: ClusterConfig,
    scratch: Path,
    logs: Path,
    imports: Sequence[str] = (),
    certificate: Path | None = None,
    tell: Callable[[str], object] = logger.info,
) -> Iterator[Client]:
    """Start or join the run's cluster; yields a default Client. A cluster that is started here ends
    with the block.

    logs: directory for one log per worker. imports: modules that forked workers have imported.
    certificate: file that gives access to the cluster, by default in `scratch`; made if missing.
    tell: called with a sentence if a port is not the configured one. Raises ClusterTooSmall if
    workers are missing.
    """
    specs = worker_specs(config)
    method = start_method(specs)
    tls = _tls_files(config, certificate or scratch / CERTIFICATE)
    with dask.config.set(SETTINGS | {METHOD: method} | (tls_settings(tls) if tls else {})):
        if config.scheduler_address is not None:
            with _joined(config) as client:
                yield client
            return
        if method == "forkserver":
            start_fork_server((__name__, *imports), _environment_of(specs[0]))
        scheduler, dashboard = wishes_of(config)
        with held_port(scheduler, tell) as port, held_port(dashboard, tell) as dashboard_port:
            cluster = BoundedCluster(
                deadline_s=config.start_deadline_s + KILLED_WITHIN_S,
                scheduler={
                    "cls": Scheduler,
                    "options": {
                        "host": config.scheduler_host,
                        "protocol": "tls",
                        "port": port,
                        "dashboard_address": f"{LOOPBACK}:{dashboard_port}",
                    },
                },
                workers={
                    spec.name: nanny_of(spec, scratch, logs, config.start_deadline_s)
                    for spec in specs
                },
                silence_logs=40,
                name="rollflow",
            )
            with cluster, Client(cluster, direct_to_workers=True) as client:
                wait_for_workers(client, config)
                yield client


class PreparedWorkers(WorkerPlugin):  # type: ignore[misc]  # Dask is not typed
    """Makes every worker of a joined cluster create files that only its user can read, and use no
    proxy to its own machine and the flow's. Workers that a run starts inherit that."""

    name = "rollflow-prepared-workers"

    def __init__(self) -> None:
        self._hosts = own_hosts()  # the flow's

    def setup(self, worker: Worker) -> None:
        keep_private()
        bypass_proxies(self._hosts)


def _tls_files(config: ClusterConfig, certificate: Path) -> TlsFiles | None:
    """The TLS files that the configuration names, else those of this run's certificate. None for a
    joined cluster without TLS files in the configuration: Dask's own settings apply then."""
    if not config.tls_ca_file:
        return None if config.scheduler_address else TlsFiles.in_one(make_certificate(certificate))
    given = (config.tls_ca_file, config.tls_cert, config.tls_key)
    authority, own, key = (str(Path(file).absolute()) for file in given)
    files = TlsFiles(authority=authority, certificate=own, key=key)
    files.check("cluster.tls_ca_file, .tls_cert and .tls_key")
    return files


@contextmanager
def _joined(config: ClusterConfig) -> Iterator[Client]:
    """Raises ValueError if a worker of the run has other package versions than the flow."""
    try:
        client = Client(
            config.scheduler_address, timeout=config.start_deadline_s, direct_to_workers=True
        )
    except OSError as error:
        raise ClusterTooSmall(
            f"scheduler_address must name a running Dask scheduler, {config.scheduler_address} does"
            f" not answer ({error}); start it with 'dask scheduler', or leave scheduler_address"
            " empty"
        ) from error
    with client:
        client.register_plugin(PreparedWorkers())
        wait_for_workers(client, config)
        addresses, found = worker_addresses(client), client.get_versions()
        ours = {addresses[spec.name] for spec in worker_specs(config)}  # no others are checked
        workers = {name: told for name, told in found["workers"].items() if name in ours}
        told = error_message(found["scheduler"], workers, found["client"])
        if told["error"]:
            raise ValueError(told["error"])
        yield client


def _environment_of(spec: WorkerSpec) -> dict[str, str]:
    """All environment variables that the process of this worker must start with."""
    return first_environment() | spec.environment | python_path()


def wait_for_workers(client: Client, config: ClusterConfig) -> None:
    """Wait for every worker of the run; raises ClusterTooSmall after config.start_deadline_s."""
    specs = worker_specs(config)
    wanted, ends = {spec.name for spec in specs}, time.monotonic() + config.start_deadline_s
    while not wanted <= worker_addresses(client).keys() and time.monotonic() < ends:
        time.sleep(LOOK_S)
    present = {worker["name"]: worker for worker in workers_of(client).values()}
    missing = [spec.name for spec in specs if spec.name not in present]
    if missing:
        raise ClusterTooSmall(
            f"the cluster must have workers named {', '.join(spec.name for spec in specs)};"
            f" {', '.join(missing)} did not come within {config.start_deadline_s:.0f} s"
            f" (present: {', '.join(sorted(map(str, present))) or 'none'}); start them with"
            f" 'dask worker --name {missing[0]} ...'"
        )
    slots = present["control"]["resources"].get("coordinator", 0)
    if slots < COORDINATORS:
        raise ClusterTooSmall(
            f"the control worker must offer at least {COORDINATORS} coordinator slots, it has"
            f" {slots:g}; start it with --nthreads {COORDINATORS + 2} --resources"
            f" 'coordinator={COORDINATORS}'"
        )


def check_coming(client: Client, workers: Iterable[str]) -> None:
    """Raise ClusterTooSmall if the nanny of one of these workers has given up starting it."""
    for worker in workers:
        if why := given_up(client, worker):
            raise ClusterTooSmall(why)


def worker_addresses(client: Client) -> dict[str, str]:
    """Addresses of all workers, by name; empty if the scheduler cannot be reached."""
    with suppress(OSError):
        return {worker["name"]: address for address, worker in workers_of(client).items()}
    return {}


def workers_of(client: Client, **options: Any) -> dict[str, dict[str, Any]]:  # Any: Dask's
    """The scheduler's record of every worker, by address; OSError if it does not answer. Unlike
    `Client.scheduler_info`, which may return Dask's own latest answer, without workers."""
    if client.scheduler is None:
        raise OSError("the client has been closed")
    told = client.sync(client.scheduler.identity, n_workers=-1, **options)
    found: dict[str, dict[str, Any]] = told["workers"]
    return found


def pin_process(core_ids: Sequence[int]) -> tuple[int, ...]:
    """Bind every thread of this process to cores. core_ids: positions in the sorted list of cores
    that the process may use. Returns the cores' numbers; empty if none was bound."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = tuple(allowed[index] for index in core_ids if index < len(allowed))
    if not cores:
        return ()
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:
            continue  # the thread ended meanwhile
    return cores
