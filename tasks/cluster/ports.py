"""Ports for servers of ours, where nobody named one."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

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
