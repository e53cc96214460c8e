"""Chooses ports for a run's servers: the usual port if it is free, else any free one. A port that a
user named is used or refused.

A port is held by binding a Unix socket to an abstract address (one without a file) named after the
port. So two runs that start at the same instant never choose the same port, and the port itself
stays free for the server. This module also sets the network interface on which learners listen.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]  # it has no stubs

LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
SERVER_PORTS = range(20_000, 32_768)  # below those that Linux gives to outgoing connections
NUM_TRIES = 100
HOLDER = "\0rollflow-port-{}"  # abstract address, in the same network namespace as the port


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The port that a server should have."""

    what: str  # the server, for messages: "the Prefect server"
    port: int  # 0 for any
    is_named: bool  # a user named it: no other will do
    cure: str  # how a user names another port: "with --prefect-port"
    host: str = LOOPBACK  # address that the server listens on

    def check(self) -> None:
        """Raises ValueError for a number out of range, and if a port that a user named is taken."""
        if not 0 <= self.port <= LAST_PORT:
            raise ValueError(
                f"the port of {self.what} must be 0 to {LAST_PORT}, got {self.port}; choose another"
            )
        if self.port and self.is_named and (reason := refusal(self.port, self.host)):
            raise ValueError(self._refused(reason))

    def _refused(self, reason: str) -> str:
        return (
            f"the port of {self.what} must be free, {self.host}:{self.port} is not ({reason}); end"
            f" what listens there, or name another {self.cure} (0 takes a free one)"
        )

    def hold(self) -> tuple[int, socket.socket]:
        """Returns the port and a socket that holds it until closed. Raises ValueError as `check`,
        OSError if no port is free."""
        self.check()
        if self.port and (holder := _holder(self.port, self.host)) is not None:
            return self.port, holder
        if self.port and self.is_named:
            raise ValueError(self._refused("another run takes it"))
        return _any_port(self.host)


@contextmanager
def held_port(wish: Wish, tell: Callable[[str], object]) -> Iterator[int]:
    """Hold a port for a server that starts in the block. `tell`: gets a sentence on another."""
    port, holder = wish.hold()
    with holder:
        if wish.port not in (0, port):
            tell(f"port {wish.port} is taken: {wish.what} has port {port}")
        yield port


def free_port(host: str = LOOPBACK) -> int:
    """A port of this address that is neither in use nor held at this moment, and that no outgoing
    connection takes. Raises OSError if none is free."""
    port, holder = _any_port(host)
    holder.close()
    return port


def refusal(port: int, host: str = LOOPBACK) -> str:
    """Why no server can listen on this port, in the system's words; empty if one can."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _any_port(host: str) -> tuple[int, socket.socket]:
    draws = random.SystemRandom()  # processes that were forked from one draw apart
    for port in draws.sample(SERVER_PORTS, NUM_TRIES):
        if (holder := _holder(port, host)) is not None:
            return port, holder
    raise OSError(
        f"one of {NUM_TRIES} ports in {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1} must be free"
        f" on {host}, none is ({refusal(port, host)}); end what listens there, or correct the"
        " address"
    )


def _holder(port: int, host: str) -> socket.socket | None:
    """A socket that holds the port until it is closed; None if the port is taken or held."""
    holder = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        holder.bind(HOLDER.format(port))
        if not refusal(port, host):
            return holder
    holder.close()
    return None


def is_loopback(host: str) -> bool:
    """True if the address can be reached from this machine alone."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def address_towards(url: str) -> str | None:
    """This machine's own address towards the URL's server; None if its name is unknown."""
    where = urlsplit(url)
    with suppress(OSError):
        for family, kind, *_, place in socket.getaddrinfo(
            where.hostname, where.port, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
    return None


def interface_of(address: str) -> str | None:
    """Name of this machine's network interface with the address; None if none has it."""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return str(interface)
    return None


def address_on(interface: str) -> str:
    """The address of a network interface of this machine, IPv4 if it has one. Raises ValueError,
    which lists those that there are, if the interface is unknown or without an address."""
    found = {
        name: [str(each.address) for each in addresses if _is_routable(each.address)]
        for name, addresses in psutil.net_if_addrs().items()
    }
    if addresses := found.get(interface):
        return min(addresses, key=lambda address: ip_address(address).version)
    there = ", ".join(sorted(name for name, addresses in found.items() if addresses))
    raise ValueError(
        f"a network interface must be of this machine and have an address, got {interface!r}; there"
        f" are {there}"
    )


def _is_routable(address: str) -> bool:
    """True for an IP address that needs no interface beside it."""
    try:
        return not ip_address(address).is_link_local
    except ValueError:  # of the hardware, or with its interface: fe80::1%eth0
        return False


def reach_ranks_by(address: str) -> None:
    """Have gloo listen on the interface of this address, unless the environment names one; for a
    loopback address NCCL and vLLM as well. Its default, the address of the machine's own name, may
    be open to other machines, or unreachable for ranks there."""
    interface = interface_of(address)
    if interface is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if is_loopback(address):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        os.environ.setdefault("VLLM_HOST_IP", address)
