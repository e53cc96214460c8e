"""Elastic workers of an experiment: a few places for workers, each on a host of its own where this
machine makes hosts, which are filled again some time after their worker has gone; but for one,
which stays empty for who is told to join.

    place: empty ─▶ fill ─▶ rollflow worker ─▶ drain, kill, cut ... ─▶ empty ─▶ (pause) ─▶ fill

For one thread, but for links, which are mended by a timer.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from flows.commands.worker import TLS
from research.kills.network_hosts import NetworkHosts, NetworkRefused, network_hosts
from tasks.cluster.certificate import make_certificate
from tasks.cluster.ports import free_port
from tasks.cluster.process_environment import python_path
from tasks.elastic.config import LOOPBACK_NETWORKS

LONGEST_PAUSE_S = 20.0  # before an empty place is filled again
LONGEST_CUT_S = 12.0  # of a link; leases are shorter than that
RATE_MBIT = 16.0  # of a link: a pull of the tiny model takes a second or two
BUSY_SHARE = 0.5  # of that rate, from which on a link is carrying weights: nothing else is as large
LOOK_S = 0.1  # between two counts of what a link has carried: fewer bytes say nothing
END_S = 10.0  # within which what was told to end has ended
LEASE_S = 4
TIMES = ("--lease-s", str(LEASE_S), "--grace-s", "15", "--drain-s", "10")
TOKEN = "token"  # file of the folder


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerPlace:
    """Where a worker may be."""

    name: str  # of its host and its worker
    core: int  # that the worker is bound to
    worker: subprocess.Popen[bytes] | None = None
    filled_from_s: float = 0.0  # an empty place is filled then, by the monotonic clock
    seen: tuple[float, int] = (0.0, 0)  # time and bytes that it had received at the last look
    received_mbit: float = 0.0  # a second, up to that look
    mending: threading.Timer | None = field(default=None, repr=False)  # of its link

    def __str__(self) -> str:
        return self.name

    @property
    def is_empty(self) -> bool:
        return self.worker is None or self.worker.poll() is not None


class ElasticPool:
    """The places, and what can happen to who is there."""

    def __init__(self, folder: Path, names: list[str], hosts: NetworkHosts | None) -> None:
        """folder: for the output of the workers. hosts: one of each name, or None for workers on
        this machine itself."""
        self._folder = folder
        (folder / TOKEN).write_text(secrets.token_hex())
        self._certificate = make_certificate(folder / "park.pem")
        self._hosts = hosts
        self._here = "127.0.0.1" if hosts is None else hosts.here
        self._port = free_port()
        self._draws = random.Random("park")
        self.places = [
            WorkerPlace(name=name, core=number % (os.cpu_count() or 1))
            for number, name in enumerate(names)
        ]

    @property
    def has_links(self) -> bool:
        """Whether workers are on hosts of their own."""
        return self._hosts is not None

    @property
    def settings(self) -> tuple[str, ...]:
        """FIELD=VALUE, of a run that these workers can join and pull weights from."""
        network = LOOPBACK_NETWORKS[0] if self._hosts is None else self._hosts.network
        return (
            "elastic.enabled=true",
            f"elastic.lease_s={LEASE_S}",
            f"elastic.token_file={self._folder / TOKEN}",
            *(f"cluster.{field}={self._certificate}" for field in TLS),
            "elastic.weights.enabled=true",
            f'elastic.weights.allowed_senders=["{network}"]',
            f"cluster.scheduler_host={self._here}",
            f"cluster.scheduler_port={self._port}",
        )

    def processes(self) -> list[psutil.Process]:
        """The workers that there are."""
        found = []
        for place in self.places:
            if place.worker is not None:
                try:
                    found.append(psutil.Process(place.worker.pid))
                except psutil.NoSuchProcess:
                    continue
        return found

    def empty(self) -> list[WorkerPlace]:
        """Places without a worker, after those have been filled whose pause is over."""
        for place in self.places:
            if place.is_empty and place.worker is not None:
                place.worker = None
                place.filled_from_s = time.monotonic() + self._draws.uniform(0, LONGEST_PAUSE_S)
            if self._may_fill(place):
                self.fill(place)
        return [place for place in self.places if place.is_empty]

    def filled(self) -> list[WorkerPlace]:
        """Places that have a worker."""
        self.empty()
        return [place for place in self.places if not place.is_empty]

    def linked(self) -> list[WorkerPlace]:
        """Those whose link can be cut; none where all workers are on this machine."""
        whole = (place for place in self.filled() if place.mending is None)
        return [] if self._hosts is None else list(whole)

    def transferring(self) -> list[WorkerPlace]:
        """Those whose link has been carrying weights since the last look."""
        filled = self.filled()
        return [place for place in filled if self._received_mbit(place) > BUSY_SHARE * RATE_MBIT]

    def fill(self, place: WorkerPlace) -> None:
        """Have a worker join."""
        words = ["--name", place.name, "--token-file", str(self._folder / TOKEN), *TIMES]
        words += ["--certificate", str(self._certificate)]
        words += ["--cores", str(place.core), "--local-directory", str(self._folder)]
        words += ["--host", self._here if self._hosts is None else self._hosts.address(place.name)]
        scheduler = f"tls://{self._here}:{self._port}"
        command = [sys.executable, "-m", "flows.commands.worker", scheduler, *words]
        with (self._folder / f"{place.name}.log").open("ab") as output:
            hosts = self._hosts
            run = subprocess.Popen if hosts is None else partial(hosts.run_in, place.name)
            environment = os.environ | python_path()
            place.worker = run(command, stdout=output, stderr=output, env=environment)

    def drain(self, place: WorkerPlace) -> None:
        """Have it leave."""
        self._send(place, signal.SIGTERM)

    def kill(self, place: WorkerPlace) -> None:
        """Take it away."""
        self._send(place, signal.SIGKILL)

    def cut(self, place: WorkerPlace) -> None:
        """Take its link away for some drawn seconds."""
        assert self._hosts is not None, "only hosts have links"
        self._hosts.cut(place.name)
        after_s = self._draws.uniform(1.0, LONGEST_CUT_S)
        place.mending = threading.Timer(after_s, self._mend, (place,))
        place.mending.start()

    def close(self) -> None:
        """End all that is there."""
        for place in self.places:
            if place.mending is not None:
                place.mending.cancel()
            if place.worker is not None:
                place.worker.kill()
                place.worker.wait(END_S)

    def _may_fill(self, place: WorkerPlace) -> bool:
        """Whether its pause is over, and another place stays empty."""
        num_empty = sum(each.is_empty for each in self.places)
        return place.is_empty and num_empty > 1 and time.monotonic() > place.filled_from_s

    def _received_mbit(self, place: WorkerPlace) -> float:
        """A second, between the last two looks; who asks again at once is told the same."""
        then_s, before = place.seen
        if self._hosts is not None and time.monotonic() - then_s > LOOK_S:
            place.seen = time.monotonic(), self._hosts.received_bytes(place.name)
            now_s, after = place.seen
            place.received_mbit = (after - before) * 8e-6 / (now_s - then_s)
        return place.received_mbit

    def _mend(self, place: WorkerPlace) -> None:
        assert self._hosts is not None, "it was cut"
        self._hosts.mend(place.name)
        place.mending = None

    def _send(self, place: WorkerPlace, number: int) -> None:
        if place.worker is not None:
            place.worker.send_signal(number)


@contextmanager
def elastic_pool(num_places: int, rate_mbit: float | None = RATE_MBIT) -> Iterator[ElasticPool]:
    """Places for the block, on hosts where this machine makes them. rate_mbit: of each link, in
    megabits a second; None for what the machine gives."""
    names = [f"elastic-worker-{number}" for number in range(num_places)]
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rollflow-elastic-workers-")
        )
        try:
            hosts = stack.enter_context(network_hosts(*names, rate_mbit=rate_mbit))
        except NetworkRefused as refused:
            print(f"no link is cut: {refused}", file=sys.stderr)
            hosts = None
        park = ElasticPool(Path(folder), names, hosts)
        stack.callback(park.close)
        yield park
