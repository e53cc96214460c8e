"""Actors that end their own process, at the start or in a call."""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Healthy:
    """Builds; dies when it is told to."""

    async def ping(self) -> None: ...

    async def process(self) -> int:
        return os.getpid()

    async def die(self, number: int) -> None:
        print("the last thing I say", flush=True)
        os.kill(os.getpid(), number)


class Doomed:
    """Dies while it is built, every time."""

    def __init__(self, number: int) -> None:
        print(f"process {os.getpid()} builds", flush=True)
        os.kill(os.getpid(), number)


class Unlucky(Healthy):
    """Dies while it is built for the first time."""

    def __init__(self, marker: str) -> None:
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
