"""Who listens where: every socket of a process and its children, and what a stranger gets there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from distributed.comm import connect

Place = tuple[str, int]  # address and port
ANSWERS_WITHIN_S = 3.0


def listeners(pid: int) -> set[Place]:
    """Where the process and all that it started listen over TCP."""
    found: set[Place] = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            sockets = process.net_connections("tcp")
            found |= {tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def let_in(places: Iterable[Place], scheme: str, certificate: Path | None = None) -> set[Place]:
    """Those of these places where Dask answers somebody with this certificate, who does not ask who
    answers."""
    options = {} if certificate is None else {"ssl_context": unsuspecting(certificate)}
    places = list(places)
    answers = asyncio.run(_asked(places, scheme, options))
    return {place for place, answers_us in zip(places, answers, strict=True) if answers_us}


def unsuspecting(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate)
    return context


async def _asked(places: list[Place], scheme: str, options: dict[str, Any]) -> list[bool]:
    urls = (f"{scheme}://{host}:{port}" for host, port in places)
    return await asyncio.gather(*(_answers(url, options) for url in urls))


async def _answers(url: str, options: dict[str, Any]) -> bool:
    """Any: Dask's. Dask's own connection greets, and is greeted."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            comm = await connect(url, timeout=ANSWERS_WITHIN_S, **options)
            await comm.write({"op": "identity", "reply": True})
            await comm.read()
            comm.abort()
    except (OSError, TimeoutError, ValueError, MemoryError):  # the last: what spoke is no Dask
        return False
    return True
