"""How fast a version reaches elastic workers: against a raw socket over the same path, and four
against one.

    python -m research.benchmarks.weight_transfer --mib 256 --repeats 7
    python -m research.benchmarks.weight_transfer --mib 256 --repeats 7 --hosts --rate-mbit 1000

The trainer and every elastic worker are processes of their own, all on the loopback device or, with
--hosts, in a network namespace each. A repeat is: the raw socket (memory to memory, nothing checked
or kept), one elastic worker that pulls, all elastic workers that pull at once and pass shards on,
all elastic workers that each pull from the trainer. Printed are medians over the repeats, which
alternate, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from artifacts.records import WeightsRef
from research.kills.network_hosts import NetworkHosts, network_hosts
from tasks.elastic.config import ElasticWeightsConfig
from tasks.elastic.weights.pulls import WorkerWeights
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import Pull

TOKEN = "of-the-benchmark"
EVERYBODY = ("0.0.0.0/0", "::/0")
PIECE_BYTES = 1 << 20
LEAST_RATIO = 0.7  # of the raw socket's rate
MOST_TIMES = 1.5  # as long for all elastic workers as for one
ALTERNATIVES = ("raw", "one", "passed on", "from the trainer")


class ProcessPlaces:
    """Where processes run: all here, or each in the network namespace of its name."""

    def __init__(self, hosts: NetworkHosts | None) -> None:
        self._hosts = hosts

    def address(self, name: str) -> str:
        return self._hosts.address(name) if self._hosts else "127.0.0.1"

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[str]:
        run = partial(self._hosts.run_in, name) if self._hosts else subprocess.Popen
        return run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Role:
    """A process of this module that answers a line with a line."""

    def __init__(self, places: ProcessPlaces, name: str, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "research.benchmarks.weight_transfer", "--role", role]
        self._process = places.start(name, [*command, places.address(name), *arguments])
        self.told = self.answer()

    def ask(self, *words: object) -> None:
        """Have it begin something."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """What it says when it has done it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with {self._process.wait()}")
        return line.strip()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rates and ratios; ends with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="size of a version")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--elastic-workers", type=int, default=4)
    parser.add_argument("--hosts", action="store_true", help="a network namespace each; as root")
    parser.add_argument("--rate-mbit", type=float, help="of each host's link, each way")
    parser.add_argument("--folder", type=Path, help="default: memory, as a run's weights are")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.role:
        role, *told = given.role
        asyncio.run(trainer_role(*told) if role == "trainer" else elastic_worker_role(*told))
        return
    memory = Path("/dev/shm")
    parent = given.folder or (memory if memory.is_dir() else None)
    elastic_workers = [f"elastic-worker-{number}" for number in range(given.elastic)]
    with tempfile.TemporaryDirectory(dir=parent) as folder, ExitStack() as stack:
        hosts = None
        if given.hosts:
            hosts = stack.enter_context(
                network_hosts("trainer", *elastic_workers, rate_mbit=given.rate_mbit)
            )
        measured = _measure(ProcessPlaces(hosts), elastic_workers, folder, given.mib, given.repeats)
    sys.exit(not _print(measured, given.mib, given.elastic))


def _measure(
    places: ProcessPlaces, elastic_workers: Sequence[str], folder: str, mib: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each repeat, by alternative. A first one, which warms caches up, is left out."""
    origin = Role(places, "trainer", "trainer", folder, str(mib))
    receivers = [
        Role(places, name, "elastic", name, folder, *origin.told.split())
        for name in elastic_workers
    ]
    seconds: dict[str, list[float]] = {name: [] for name in ALTERNATIVES}
    for version in range(1, 3 * (repeats + 1), 3):
        _raw(receivers[0], mib)
        seconds["raw"].append(_raw(receivers[0], mib))
        for step, name in enumerate(ALTERNATIVES[1:]):
            origin.ask(version + step)
            origin.answer()
            asked = receivers[:1] if name == "one" else receivers
            seconds[name].append(_pulled(asked, version + step, name == "passed on"))
    for role in (*receivers, origin):
        role.end()
    return {name: taken[1:] for name, taken in seconds.items()}


def _raw(receiver: Role, mib: int) -> float:
    receiver.ask("raw", mib)
    return float(receiver.answer())


def _pulled(receivers: Sequence[Role], version: int, is_passed_on: bool) -> float:
    """Seconds until the last of them has all."""
    began_s = time.perf_counter()
    for receiver in receivers:
        receiver.ask("pull", version, int(is_passed_on))
    for receiver in receivers:
        receiver.answer()
    return time.perf_counter() - began_s


def _print(seconds: dict[str, list[float]], mib: int, num_elastic_workers: int) -> bool:
    """Whether the targets are met."""
    for name, taken in seconds.items():
        ordered = sorted(taken)
        print(
            f"{name:17} median {median(taken):7.3f} s ({ordered[0]:.3f} to {ordered[-1]:.3f}),"
            f" {mib / median(taken):6.0f} MiB/s to each"
        )
    took = {name: median(taken) for name, taken in seconds.items()}
    ratio, times = took["raw"] / took["one"], took["passed on"] / took["one"]
    direct = took["from the trainer"] / took["one"]
    print(f"one elastic worker at {ratio:.0%} of the raw socket (target: {LEAST_RATIO:.0%})")
    print(
        f"{num_elastic_workers} elastic workers in {times:.2f} times the time of one (target:"
        f" {MOST_TIMES})"
    )
    print(f"{num_elastic_workers} elastic workers in {direct:.2f} times, each from the trainer")
    return ratio >= LEAST_RATIO and times <= MOST_TIMES


async def trainer_role(address: str, folder: str, mib: str) -> None:
    """Serve a file of random bytes as any version that is asked for, and over a raw socket."""
    path = Path(folder) / "weights.safetensors"
    content = os.urandom(PIECE_BYTES) * int(mib)
    path.write_bytes(content)
    server = _server(address)
    await server.start()
    raw = socket.create_server((address, 0))
    threading.Thread(target=_send_raw, args=(raw, content), daemon=True).start()
    print(f"{server.url} {raw.getsockname()[1]}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await server.publish(WeightsRef(version=int(line), path=str(path), digest=""))
        print("published", flush=True)
    await server.close()


def _send_raw(listening: socket.socket, content: bytes) -> None:
    pieces = memoryview(content)
    while True:
        connection, _ = listening.accept()
        with connection:
            for start in range(0, len(content), PIECE_BYTES):
                connection.sendall(pieces[start : start + PIECE_BYTES])


async def elastic_worker_role(
    address: str, name: str, folder: str, origin: str, raw_port: str
) -> None:
    """Receive as often as asked."""
    server = _server(address)
    await server.start()
    passing = WorkerWeights(Path(folder) / name, server)
    alone = WorkerWeights(Path(folder) / f"{name}-alone", None)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, number, *is_passed_on = line.split()
        if what == "raw":
            host = origin.removeprefix("http://").rpartition(":")[0]
            took_s = await asyncio.to_thread(_receive_raw, host, int(raw_port), int(number))
            print(took_s, flush=True)
        else:
            order = Pull(origin=origin, name=number, token=TOKEN, deadline_s=600, receiver=name)
            await (passing if is_passed_on == ["1"] else alone).pull(order)
            print("pulled", flush=True)
    await passing.close()
    shutil.rmtree(Path(folder) / f"{name}-alone", ignore_errors=True)


def _receive_raw(address: str, port: int, mib: int) -> float:
    piece = memoryview(bytearray(PIECE_BYTES))
    left = mib << 20
    began_s = time.perf_counter()
    with socket.create_connection((address, port)) as connection:
        while left:
            got = connection.recv_into(piece)
            assert got, "the raw socket ended early"
            left -= got
    return time.perf_counter() - began_s


def _server(address: str) -> WeightServer:
    return WeightServer(ElasticWeightsConfig(host=address, allowed_senders=EVERYBODY), TOKEN)


if __name__ == "__main__":
    main()
