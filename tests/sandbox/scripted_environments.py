"""Environments that behave, and environments that do not, for the tests of their hosts."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from artifacts.datasets.rows import Message
from tasks.environments.base import EnvironmentSettings, Transition


class Script(EnvironmentSettings):
    """An environment that does what it is told by name, at reset or at the step of that text."""

    slow_imports = ("encodings.idna",)  # where the library is out of reach later

    name: str = "script"
    at_reset: str = ""
    at_build: str = ""

    def head(self) -> tuple[Message, ...]:
        return (Message(role="system", content=self.name),)

    def build(self) -> ScriptEnvironment:
        act(self.at_build)
        return ScriptEnvironment(self)


class Connected(Script):
    """The same, with the network."""

    needs_network = True


class Sharing(Script):
    """The same, with a module that its processes share."""

    slow_imports = ("colorsys",)


class Heavy(Script):
    """The same, in a hundred kilobytes."""

    def build(self) -> ScriptEnvironment:
        environment = ScriptEnvironment(self)
        environment.cargo = bytes(100 << 10)
        return environment


class Unpicklable(Script):
    """The same, with what no pickle takes along."""

    def build(self) -> ScriptEnvironment:
        environment = ScriptEnvironment(self)
        environment.cargo = lambda: None
        return environment


class Threading(Script):
    """The same, with a module that cannot be shared; the test writes it."""

    slow_imports = ("colorsys", "module_with_a_thread")


class ScriptEnvironment:
    """Counts its turns; an observation is the seed and the count."""

    def __init__(self, settings: Script) -> None:
        self._settings = settings
        self._seed = self._turn = 0
        self.cargo: object = None

    def reset(self, seed: int) -> str:
        self._seed, self._turn = seed, 0
        return str(act(self._settings.at_reset) or f"{seed}:0")

    def step(self, text: str) -> Transition:
        self._turn += 1
        if text in ANSWERS:
            return ANSWERS[text]  # type: ignore[no-any-return]
        told = act(text)
        observation = f"{self._seed}:{self._turn}" if told is None else told
        is_over = text == "last"
        # what an environment answers is not always what it should
        return Transition(observation, 0.5, is_over, False, {"text": text})  # type: ignore[arg-type]


def act(text: str) -> object:
    """What was asked for: `NAME ARGUMENT`. None where that says nothing."""
    name, _, argument = text.partition(" ")
    return ACTS[name](argument) if name in ACTS else None


def pid(_: str) -> str:
    return str(os.getpid())


def write_until_full(_: str) -> None:
    for number in range(1000):
        Path(f"/tmp/{number}").write_bytes(bytes(1 << 20))


def fill(_: str) -> str:
    """Megabytes that could be written."""
    written = 0
    with suppress(OSError):
        while True:
            Path(f"/tmp/full{written}").write_bytes(bytes(1 << 20))
            written += 1
    return str(written)


def hoard_sockets(_: str) -> str:
    """Sockets that could be held."""
    held: list[socket.socket] = []
    with suppress(OSError):
        while True:
            held.append(socket.socket())
    return str(len(held))


def do_for_ever(words: str) -> None:
    while True:
        with suppress(Exception):
            act(words)


def open_socket(address: str) -> str:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stream:
        return stream.recv(100).decode()


def print_on_everything(_: str) -> None:
    print("x" * (1 << 20), flush=True)
    print("x" * (1 << 20), file=sys.stderr, flush=True)
    os.write(1, bytes(1 << 20))
    os.write(2, bytes(1 << 20))


def loop(_: str) -> None:
    while True:
        pass


def allocate(megabytes: str) -> None:
    bytearray(int(megabytes) << 20)


def read(path: str) -> str:
    return Path(path).read_text()


def answer_unasked(_: str) -> None:
    os.write(3, b"\0\0\0\2{}")


def claim_length(_: str) -> None:
    os.write(3, b"\x7f\xff\xff\xff")
    time.sleep(60)


def raise_it(words: str) -> None:
    raise LookupError(words)


def exit_with(code: str) -> None:
    os._exit(int(code))


ACTS: dict[str, Callable[[str], object]] = {
    "pid": pid,
    "echo": lambda text: text,
    "fork": lambda _: str(os.fork()),
    "subprocess": lambda _: subprocess.run(["true"], check=True),
    "thread": lambda _: threading.Thread(target=print).start(),
    "disk": write_until_full,
    "socket": open_socket,
    "fill": fill,
    "hoard": hoard_sockets,
    "forever": do_for_ever,
    "print": print_on_everything,
    "loop": loop,
    "sleep": lambda seconds: time.sleep(float(seconds)),
    "allocate": allocate,
    "read": read,
    "unasked": answer_unasked,
    "claim": claim_length,
    "raise": raise_it,
    "exit": exit_with,
    "sys.exit": lambda _: sys.exit(3),
    "long": lambda count: "x" * int(count),
    "number": lambda _: 7,
    "bytes": lambda _: b"seven",
    "touch": lambda path: Path(path).write_text("x"),
    "imported": lambda name: str(name in sys.modules),
    "environ": lambda _: " ".join(sorted(os.environ)),
}
ANSWERS: dict[str, Any] = {  # Any: what no environment may answer
    "infinite": Transition("x", math.inf, False, False, {}),
    "nan": Transition("x", math.nan, False, False, {}),
    "nothing": None,
}
