"""Elastic workers in processes of their own beside a scheduler in this one, and what they told
it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Security

from tasks.cluster.dask_cluster import worker_addresses
from tasks.elastic.worker_card import TOPIC

ROOT = Path(__file__).parents[2]
COMES_WITHIN_S = 400.0  # a process that imports Dask beside others that take every core


class Trainer:
    """A client of the scheduler, with every message that elastic workers sent."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: list[dict[str, Any]] = []  # Any: plain values
        client.subscribe_topic(TOPIC, lambda event: self.messages.append(event[1]))

    @property
    def address(self) -> str:
        return str(self.client.scheduler.address)

    def address_of(self, name: str) -> str:
        """Where the elastic worker is, once it has joined."""
        wait_until(lambda: name in worker_addresses(self.client), f"{name} joins")
        return worker_addresses(self.client)[name]

    def told(self, kind: str, name: str) -> list[dict[str, Any]]:  # Any: plain values
        return [
            message
            for message in list(self.messages)
            if (message["kind"], message["name"]) == (kind, name)
        ]


@contextmanager
def a_trainer(security: Security | None = None, host: str = "127.0.0.1") -> Iterator[Trainer]:
    """Its scheduler listens on this address."""
    protocol = "tcp://" if security is None else "tls://"
    options = {"protocol": protocol, "security": security, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=0, host=host, silence_logs=50, **options) as cluster,
        Client(cluster, security=security) as client,
    ):
        yield Trainer(client)


@contextmanager
def an_elastic_worker(
    address: str, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """`rollflow worker ADDRESS ...`; killed at the end of the block if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.commands.worker", address, *words],
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], within_s: float = COMES_WITHIN_S) -> tuple[int, str]:
    """Exit status and what it wrote."""
    _, said = process.communicate(timeout=within_s)
    return process.returncode, said


def wait_until(holds: Callable[[], bool], what: str, within_s: float = COMES_WITHIN_S) -> None:
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)
