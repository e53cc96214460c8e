"""Hosts of one machine: network namespaces with an address each, so that what crosses a host's
border really crosses one.

    this machine (10.64.N.1) ══ bridge ══ veth ── namespace "elastic"   (10.64.N.2)
                                       ══ veth ── namespace "another" (10.64.N.3)

    with network_hosts("elastic", "another", rate_mbit=1000) as hosts:
        process = hosts.run_in("elastic", ["rollflow", "worker", f"tls://{hosts.here}:8786"])
        hosts.cut("elastic")    # nothing arrives any more, and nobody is told
        hosts.mend("elastic")

It needs root, iproute2 and a kernel that allows it; `why_not` says what is missing. Whatever
happens in the block, processes, namespaces and bridge are gone after it; what a killed process left
is removed by the next.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX = "rf"  # of all that is made: rf<process>-<number>
FIRST_NET, NETS = 64, 64  # 10.64 to 10.127, a /24 for each process
BURST_KB = 256  # that may pass at once where a rate is set
LATENCY_MS = 50  # that a packet may wait for its turn


class NetworkRefused(RuntimeError):
    """This machine makes no hosts; the message says why, and what to do."""


class NetworkHosts:
    """The hosts of a block, by name."""

    def __init__(self, names: Sequence[str], rate_mbit: float | None) -> None:
        self._mark = f"{PREFIX}{os.getpid()}"
        self._numbers = {name: number for number, name in enumerate(names, start=2)}
        self._rate_mbit = rate_mbit
        self._started: list[subprocess.Popen[Any]] = []
        high, low = divmod(os.getpid() % (NETS * 256), 256)
        self._net = f"10.{FIRST_NET + high}.{low}"
        self.here = f"{self._net}.1"  # address of this machine for the hosts
        self.network = f"{self._net}.0/24"  # that all of them are in

    def address(self, host: str) -> str:
        return f"{self._net}.{self._numbers[host]}"

    def run_in(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process there; its id is the command's own. Any: options and streams of
        subprocess.Popen."""
        inside = ("ip", "netns", "exec", self._outside(host), *command)
        process = subprocess.Popen(inside, **options)
        self._started.append(process)
        return process

    def end_started(self) -> None:
        """Kill what was started, even what has not entered its namespace yet, where `remove` finds
        no more than has."""
        for process in self._started:
            process.kill()

    def cut(self, host: str) -> None:
        """Let nothing through between the host and all others. Both ends still have their link."""
        call("ip", "link", "set", self._outside(host), "nomaster")

    def mend(self, host: str) -> None:
        """Undo `cut`; what was lost meanwhile is sent again by those who missed it."""
        call("ip", "link", "set", self._outside(host), "master", self._mark)

    def received_bytes(self, host: str) -> int:
        """That have been sent to the host so far, by its wire's count."""
        device = Path("/sys/class/net", self._outside(host))
        return int((device / "statistics" / "tx_bytes").read_text())

    def make(self) -> None:
        call("ip", "link", "add", self._mark, "type", "bridge")
        call("ip", "address", "add", f"{self.here}/24", "dev", self._mark)
        call("ip", "link", "set", self._mark, "up")
        for host in self._numbers:
            self._make_host(host)

    def _make_host(self, host: str) -> None:
        """Namespace and outer end of the wire have the same name."""
        outside = self._outside(host)
        within = ("ip", "-netns", outside)
        call("ip", "netns", "add", outside)
        call("ip", "link", "add", outside, "type", "veth", "peer", "eth0", "netns", outside)
        call("ip", "link", "set", outside, "master", self._mark, "up")
        call(*within, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        call(*within, "link", "set", "eth0", "up")
        call(*within, "link", "set", "lo", "up")
        if self._rate_mbit is not None:
            self._limit("tc", device=outside)
            self._limit("tc", "-netns", outside, device="eth0")

    def _limit(self, *tc: str, device: str) -> None:
        """What is sent by this end goes at the rate."""
        bucket = ("burst", f"{BURST_KB}kb", "latency", f"{LATENCY_MS}ms")
        rate = ("rate", f"{self._rate_mbit:g}mbit")
        call(*tc, "qdisc", "add", "dev", device, "root", "tbf", *rate, *bucket)

    def _outside(self, host: str) -> str:
        return f"{self._mark}-{self._numbers[host]}"


@contextmanager
def network_hosts(*names: str, rate_mbit: float | None = None) -> Iterator[NetworkHosts]:
    """Hosts of these names for the block. rate_mbit: megabits a second of each wire, each way.

    Raises NetworkRefused where this machine makes none.
    """
    if reason := why_not():
        raise NetworkRefused(reason)
    for mark in abandoned():
        remove(mark)
    hosts = NetworkHosts(names, rate_mbit)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.end_started()
        remove(f"{PREFIX}{os.getpid()}")


def why_not() -> str:
    """What is missing for hosts here, and the cure; empty if nothing."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"hosts need the program {program}; install iproute2"
    if os.geteuid() != 0:
        return "hosts need root, this is another user; run it as root"
    mark = f"{PREFIX}{os.getpid()}-try"
    tried = subprocess.run(("ip", "netns", "add", mark), capture_output=True, text=True)
    subprocess.run(("ip", "netns", "delete", mark), capture_output=True)
    if tried.returncode != 0:
        return f"hosts need network namespaces ({tried.stderr.strip()}); allow CAP_SYS_ADMIN"
    return ""


def abandoned() -> set[str]:
    """The marks of hosts whose maker has ended."""
    found = {name.partition("-")[0] for name in namespaces()}
    return {
        mark for mark in found if not Path("/proc", mark.removeprefix(PREFIX), "status").exists()
    }


def namespaces() -> list[str]:
    """Names of our network namespaces, those of other processes included."""
    listed = call("ip", "netns", "list").splitlines()
    names = (line.split()[0] for line in listed if line.strip())
    return [name for name in names if re.fullmatch(rf"{PREFIX}\d+-\w+", name)]


def remove(mark: str) -> None:
    """End the processes in hosts of this mark, and take the hosts away; as much as there is."""
    for name in (name for name in namespaces() if name.startswith(f"{mark}-")):
        with suppress(OSError, RuntimeError):
            for number in call("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
        for command in (("link", "delete", name), ("netns", "delete", name)):
            subprocess.run(("ip", *command), capture_output=True)
    subprocess.run(("ip", "link", "delete", mark), capture_output=True)


def call(*command: str) -> str:
    """What the command prints. RuntimeError with its own words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"'{' '.join(command)}' must succeed: {done.stderr.strip()}")
    return done.stdout
