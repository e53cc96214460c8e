"""Where servers of ours listen: free ports where nobody named one, and no interface beyond what was
told."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]  # it has no stubs

LOOPBACK = "127.0.0.1"
SERVER_PORTS = range(20_000, 32_768)  # below those that Linux gives to outgoing connections
NUM_TRIES = 100


def free_port(host: str = LOOPBACK) -> int:
    """A port of this host's address that nobody listens on at this moment, and that no outgoing
    connection gets before it is taken: those have the ports that a system gives to whoever names
    none."""
    draws = random.SystemRandom()  # processes that were forked from one draw apart
    for port in draws.sample(SERVER_PORTS, NUM_TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(
        f"one of {NUM_TRIES} ports in {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1} must be free"
        f" on {host}, none is; end what listens there"
    )


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches the address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def address_towards(url: str) -> str | None:
    """The address of this machine that others see who are called at the URL; None where its name
    is not known. Sends nothing."""
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
    """The network interface of this machine that has the address."""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return str(interface)
    return None


def reach_ranks_by(address: str) -> None:
    """Have gloo listen where this process is reached by others, unless the environment names an
    interface; on the loopback address NCCL and vLLM, too. By itself gloo listens where the host's
    own name leads: beyond this machine, or where ranks on other hosts find nobody."""
    interface = interface_of(address)
    if interface is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if is_loopback(address):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        os.environ.setdefault("VLLM_HOST_IP", address)
