"""Requests to this machine go without a proxy, whatever proxy the user's environment names.

Every client reads the environment for itself: httpx (Prefect), requests (MLflow), urllib,
websockets. All of them honour `no_proxy`, so that is extended, before the first of them is made;
processes that are started afterwards inherit it. Leaves out clients that never read it: aiohttp and
http.client, by which weights and verdicts come.
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
    """Have the clients of this process, and of processes that it starts from now on, ask this
    machine and these hosts without a proxy."""
    os.environ.update(direct(os.environ, (*own_hosts(), *hosts)))


def direct(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Changes to an environment's variables, by which clients ask these hosts directly and all
    others as before. A SOCKS proxy that no client can use is unset: httpx would raise for it at any
    request."""
    given = ",".join(environment.get(name, "") for name in NO_PROXY).split(",")
    entries = [*filter(None, map(str.strip, given)), *hosts]
    hosts_list = "*" if "*" in entries else ",".join(dict.fromkeys(entries))
    names = [spelling for name in PROXIES for spelling in (name, name.upper())]
    socks = [name for name in names if environment.get(name, "").lower().startswith("socks")]
    unusable = [] if find_spec("socksio") else socks
    return dict.fromkeys(NO_PROXY, hosts_list) | dict.fromkeys(unusable, "")


def open_directly(request: str | Request, timeout_s: float) -> Any:  # Any: as urllib has it
    """The response of a server, asked without a proxy. Raises OSError."""
    return build_opener(ProxyHandler({})).open(request, timeout=timeout_s)


def own_hosts() -> tuple[str, ...]:
    """The names and addresses of this machine."""
    import psutil  # type: ignore[import-untyped]  # 17 ms, which not every command has

    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
    return (*LOCAL, socket.gethostname(), *filter(_is_reachable, found))


def _is_reachable(address: str) -> bool:
    """True for an IP address that needs no interface beside it."""
    try:
        return not ip_address(address).is_link_local
    except ValueError:
        return False
