"""Hosts in network namespaces: real sockets between two of them, over a wire that is cut, mended
and slow."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from research.kills import network_hosts as module
from research.kills.network_hosts import NetworkRefused, namespaces, network_hosts, why_not

REASON = why_not()
of_hosts = pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be made")
SERVER = """
import contextlib, socket, sys
listener = socket.create_server((sys.argv[1], 7000))
while True:
    with contextlib.suppress(OSError):
        listener.accept()[0].sendall(b"x" * int(sys.argv[2]))
"""
READER = "import socket, sys; print(socket.create_connection((sys.argv[1], 7000)).recv(9))"


def connects(address: str, within_s: float = 0.3) -> bool:
    try:
        socket.create_connection((address, 7000), timeout=within_s).close()
    except OSError:
        return False
    return True


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold within a while."""
    ends = time.monotonic() + 60
    while not (held := holds()) and time.monotonic() < ends:
        time.sleep(0.05)
    return held


@of_hosts
def test_a_socket_crosses_the_border_until_the_wire_is_cut() -> None:
    with network_hosts("one", "two") as hosts:
        address = hosts.address("one")
        hosts.run_in("one", [sys.executable, "-c", SERVER, address, "5"])
        assert soon(lambda: connects(address))
        with hosts.run_in(
            "two", [sys.executable, "-c", READER, address], stdout=subprocess.PIPE
        ) as process:
            assert process.communicate(timeout=60)[0] == b"b'xxxxx'\n"
        hosts.cut("one")
        assert not connects(address)
        hosts.mend("one")
        assert soon(lambda: connects(address))


@of_hosts
def test_a_wire_has_its_rate() -> None:
    sent = 1_000_000  # bytes: a second at 8 Mbit/s
    with network_hosts("slow", rate_mbit=8) as hosts:
        address = hosts.address("slow")
        hosts.run_in("slow", [sys.executable, "-c", SERVER, address, str(sent)])
        assert soon(lambda: connects(address))
        began_s = time.monotonic()
        with socket.create_connection((address, 7000), timeout=60) as stream:
            left = sent
            while left:
                left -= len(stream.recv(min(left, 65536)))
        assert time.monotonic() - began_s > 0.5


@of_hosts
def test_nothing_is_left_whatever_happens_in_the_block() -> None:
    def broken() -> None:
        with network_hosts("one") as hosts:
            started.append(hosts.run_in("one", ["sleep", "60"]))
            raise KeyError("of the block")

    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(KeyError, match="of the block"):
        broken()
    assert started[0].wait(timeout=10) == -9
    assert not [name for name in namespaces() if name.startswith(f"rf{module.os.getpid()}")]
    assert not list(Path("/sys/class/net").glob(f"rf{module.os.getpid()}*"))


def test_where_no_hosts_can_be_made_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda program: None)
    with (
        pytest.raises(NetworkRefused, match="hosts need the program ip; install iproute2"),
        network_hosts("one"),
    ):
        pass
