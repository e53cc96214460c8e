"""Whether the hosts of a joined cluster share what a run hands from one to another.

    a file of the flow's ── every worker that uses it ──▶ is it there, under the same path?

Asked before any engine is built: a folder that each host has for itself would else be noticed when
the first weights are loaded. Leaves out guests, which need no file of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed import Client

from tasks.cluster.dask_cluster import worker_addresses
from tasks.cluster.devices import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """Something that the flow has, and workers will look for."""

    path: str
    where: str  # the setting that says where it lies
    cure: str  # for a worker that does not find it
    roles: tuple[str, ...]  # of the workers that use it


def check_shared(client: Client, specs: Sequence[WorkerSpec], files: Sequence[SharedFile]) -> None:
    """ValueError where one of these workers does not find a file that it will use."""
    addresses = worker_addresses(client)
    paths = [file.path for file in files]
    found = client.run(_there, paths, workers=[addresses[spec.name] for spec in specs])
    for spec in specs:
        address = addresses[spec.name]
        for file, is_there in zip(files, found[address], strict=True):
            if spec.role in file.roles and not is_there:
                raise ValueError(
                    f"{file.where} must be the same on all hosts, {spec.name} at {address} finds no"
                    f" {file.path}; {file.cure}"
                )


def _there(paths: Sequence[str]) -> list[bool]:
    """In a worker: which of these it finds."""
    return [Path(path).exists() for path in paths]
