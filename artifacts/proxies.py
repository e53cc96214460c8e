"""Sends requests to this machine without a proxy, whatever proxy the user's environment names.

All HTTP clients that read the environment honour `no_proxy`, so this module extends that variable
before the first client is made; processes that are started afterwards inherit it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

NO_PROXY = ("no_proxy", "NO_PROXY")  # a client reads the one or the other
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # as clients name this machine


def bypass_proxies(hosts: Iterable[str] = ()) -> None:
    """Make the HTTP clients of this process, and of processes that it starts from now on, connect
    to this machine and to `hosts` without a proxy."""
    os.environ.update(direct(os.environ, (*own_hosts(), *hosts)))


def direct(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """The environment variables to change so that clients connect to these hosts directly, and to
    all others as before. Without the package socksio a SOCKS proxy is unset: httpx would raise at
    any request."""
    given = ",".join(environment.get(name, "") for name in NO_PROXY).split(",")
    entries = [*filter(None, map(str.strip, given)), *hosts]
    hosts_list = "*" if "*" in entries else ",".join(dict.fromkeys(entries))
    names = [spelling for name in PROXIES for spelling in (name, name.upper())]
    socks = [name for name in names if environment.get(name, "").lower().startswith("socks")]
    unusable = [] if find_spec("socksio") else socks
    return dict.fromkeys(NO_PROXY, hosts_list) | dict.fromkeys(unusable, "")


def open_directly(request: str | Request, timeout_s: float) -> Any:  # Any: as urllib has it
    """Send a request without a proxy; returns the server's response. Raises OSError."""
    return build_opener(ProxyHandler({})).open(request, timeout=timeout_s)


def own_hosts() -> tuple[str, ...]:
    """The names and addresses of this machine."""
    import psutil  # type: ignore[import-untyped]  # 17 ms, which not every command has

    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
    return (*LOCAL, socket.gethostname(), *filter(_is_reachable, found))


def _is_reachable(address: str) -> bool:
    """True for an IP address that works without an interface name: any but link-local ones."""
    try:
        return not ip_address(address).is_link_local
    except ValueError:
        return False
