"""An elastic worker in a network namespace pulls weights over the interfaces that were named: over
the first one as long as it answers, then over the next."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from artifacts.records import WeightsRef
from research.kills.network_hosts import NetworkHosts, call, network_hosts, why_not
from tasks.cluster.process_environment import SOURCES
from tasks.elastic.config import ElasticWeightsConfig
from tasks.elastic.weights.server import WeightServer

TOKEN = "of-the-run"
NUM_BYTES = 4_000_000  # of a version; two seconds over the slow link
SLOW_MBIT = 16
REASON = why_not()
PULL = """
import sys
from pathlib import Path
from tasks.elastic.weights.client import fetch
from tasks.elastic.weights.transfer import Pull
token, folder, *urls = sys.argv[1:]
order = Pull(origins=tuple(urls), name="7", token=token, deadline_s=90, receiver="guest")
fetch(order, Path(folder))
"""
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be made")


@dataclass(frozen=True, slots=True)
class Links:
    """Two links to one namespace."""

    hosts: NetworkHosts
    slow: str  # interface of this machine
    fast: str
    networks: tuple[str, str]

    def sent_bytes(self, interface: str) -> int:
        return int(Path("/sys/class/net", interface, "statistics/tx_bytes").read_text())


@contextmanager
def two_links() -> Iterator[Links]:
    """The slow one is the bridge of network_hosts; the fast one ends with its namespace."""
    with network_hosts("guest", rate_mbit=SLOW_MBIT) as hosts:
        slow, fast, inside = (f"rf{os.getpid()}{end}" for end in ("", "f", "g"))
        third = hosts.here.split(".")[2]
        here, there = f"10.200.{third}.1", f"10.200.{third}.2"
        namespace = f"{slow}-2"
        call("ip", "link", "add", fast, "type", "veth", "peer", "name", inside, "netns", namespace)
        call("ip", "address", "add", f"{here}/24", "dev", fast)
        call("ip", "link", "set", fast, "up")
        for words in (
            ("address", "add", f"{there}/24", "dev", inside),
            ("link", "set", inside, "up"),
        ):
            call("ip", "-n", namespace, *words)
        yield Links(hosts, slow, fast, (hosts.network, f"10.200.{third}.0/24"))


async def pulled(
    links: Links, folder: Path, interfaces: tuple[str, ...], meanwhile: Callable[[], None]
) -> tuple[bytes, bytes]:
    """A version as it was published, and as it came to the namespace."""
    config = ElasticWeightsConfig(interface=interfaces, allowed_senders=links.networks)
    server = WeightServer(config, TOKEN)
    path = folder / "00007.safetensors"
    path.write_bytes(random.Random(7).randbytes(NUM_BYTES))
    await server.start()
    try:
        await server.publish(WeightsRef(version=7, path=str(path), digest="of-7"))
        command = [sys.executable, "-c", PULL, TOKEN, str(folder / "guest"), *server.urls]
        process = links.hosts.run_in("guest", command, cwd=SOURCES, stderr=subprocess.PIPE)
        meanwhile()
        _, said = await asyncio.to_thread(process.communicate, timeout=120)
        assert process.returncode == 0, said.decode()
    finally:
        await server.close()
    return path.read_bytes(), (folder / "guest" / "7" / path.name).read_bytes()


@pytest.mark.parametrize("first", ["fast", "slow"])
async def test_all_comes_over_the_interface_that_is_named_first(tmp_path: Path, first: str) -> None:
    with two_links() as links:
        named = (links.fast, links.slow) if first == "fast" else (links.slow, links.fast)
        sent, came = await pulled(links, tmp_path, named, lambda: None)
        assert came == sent
        assert links.sent_bytes(named[0]) > NUM_BYTES
        assert links.sent_bytes(named[1]) < NUM_BYTES / 20


async def test_a_link_that_is_cut_in_mid_pull_is_replaced_by_the_next(tmp_path: Path) -> None:
    with two_links() as links:

        def cut() -> None:
            while links.sent_bytes(links.slow) < NUM_BYTES / 4:
                pass
            links.hosts.cut("guest")

        sent, came = await pulled(links, tmp_path, (links.slow, links.fast), cut)
        assert came == sent
        assert links.sent_bytes(links.fast) > NUM_BYTES / 4
