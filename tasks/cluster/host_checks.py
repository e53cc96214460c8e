"""Checks the machines of a joined cluster: shared files, and the numbering of devices.

    a file of the flow ── every worker that uses it ──▶ does it exist under the same path?
    devices that are numbered as one machine's ──▶ are their workers on one machine?

Runs before any engine is built. Leaves out elastic workers, which need no file of the run and have
engines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from distributed import Client

from artifacts.status import boot_id
from tasks.cluster.dask_cluster import worker_addresses
from tasks.cluster.devices import WorkerSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """A file or folder of the flow that workers must find under the same path."""

    path: str
    where: str  # the setting that names the path
    cure: str  # advice if a worker does not find it
    roles: tuple[str, ...]  # roles of the workers that use it


def check_shared(client: Client, specs: Sequence[WorkerSpec], files: Sequence[SharedFile]) -> None:
    """Raises ValueError with the first worker that does not find a file which its role uses."""
    paths = [file.path for file in files]
    for spec, address, found in _answers(client, specs, _there, paths):
        for file, is_there in zip(files, found, strict=True):
            if spec.role in file.roles and not is_there:
                raise ValueError(
                    f"{file.where} must be the same on all hosts, {spec.name} at {address} finds no"
                    f" {file.path}; {file.cure}"
                )


def check_numbering(client: Client, specs: Sequence[WorkerSpec], devices_per_host: int) -> None:
    """Raises ValueError if engine workers that are numbered as one machine's are on several."""
    engines = [spec for spec in specs if spec.role == "rollout"]
    first_of: dict[int, tuple[str, str, str]] = {}  # name, address and machine, by host
    for spec, address, machine in _answers(client, engines, boot_id):
        assert spec.device is not None, "an engine has one"
        host = int(spec.device.partition(":")[2]) // devices_per_host
        first, at, on = first_of.setdefault(host, (spec.name, address, machine))
        if machine != on:
            raise ValueError(
                f"devices must be numbered host by host, {devices_per_host} on each"
                f" (cluster.devices_per_host), {first} at {at} and {spec.name} at {address}"
                " are on two; start their workers on one, or set how many a host has"
            )


def _answers(
    client: Client, specs: Sequence[WorkerSpec], ask: Callable[..., T], *args: object
) -> Iterator[tuple[WorkerSpec, str, T]]:
    """Call `ask` in each of these workers; yields (worker, address, result). Leaves out workers
    that die meanwhile: the build of their actors will report that."""
    addresses = worker_addresses(client)
    there = [(spec, addresses[spec.name]) for spec in specs if spec.name in addresses]
    workers = [address for _, address in there]
    told = client.run(ask, *args, workers=workers, on_error="ignore")
    return ((spec, address, told[address]) for spec, address in there if address in told)


def _there(paths: Sequence[str]) -> list[bool]:
    """Runs in a worker: for each path, True if it exists there."""
    return [Path(path).exists() for path in paths]
