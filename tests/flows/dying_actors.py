"""Actors that end their own process, at the start or in a call."""

from __future__ import annotations

import os
import signal
import threading
import time
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


class ShortLived(Healthy):
    """Is built; its first process dies a moment later."""

    def __init__(self, marker: str) -> None:
        if not Path(marker).exists():
            Path(marker).touch()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()


class Slow(Healthy):
    """Takes some seconds to build."""

    def __init__(self, build_s: float) -> None:
        time.sleep(build_s)
