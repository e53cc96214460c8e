"""Tests the sandbox on this machine before its first use: if one attempt to escape succeeds, the
isolation is refused.

Each attempt is the simplest of its kind; the escape tests of the test suite have the cunning ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from tasks.isolation.interpreter import below_tmp, own
from tasks.isolation.isolation import CURES, Isolation, SandboxLimits, hidden_packages
from tasks.rewards.programs.sandbox.messages import Command
from tasks.rewards.programs.sandbox.sandbox import Sandbox, SandboxUnavailable

LIMIT_S = 10.0
LOOP_S = 0.2
IMPORT = "import colorsys"  # a module of the standard library that is not loaded yet
PROBE = """
import ctypes, os, socket

libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def add(first, second):
    return first + second

def refused(attempt):
    try:
        attempt()
    except (OSError, RuntimeError, IndexError):
        return True
    return False

def try_out(path, packages):
    first, second = os.pipe()
    return {
        "start a process": refused(os.fork),
        "open a socket": refused(socket.socket),
        "read a file of the machine": refused(lambda: open(path).read()),
        "write into the machine's files": refused(lambda: open(path + ".new", "w")),
        "signal its parent": refused(lambda: os.kill(os.getppid(), 0)),
        "have a pipe send signals": refused(lambda: call("fcntl", first, 8, os.getpid())),
        "have a pipe send them on": refused(lambda: call("fcntl", first, 4, 0x2000)),
        "change the size of a pipe": refused(lambda: call("fcntl", first, 1031, 1 << 17)),
        "change its schedule": refused(lambda: os.sched_setscheduler(0, 3, os.sched_param(0))),
        "touch a device": refused(lambda: os.utime("/dev/null")),
        "own a device": refused(lambda: os.chmod("/dev/null", 0o666)),
        "see installed packages": all([refused(lambda: os.listdir(path)[0]) for path in packages]),
        "see processes": refused(lambda: os.listdir("/proc/1")),
        "see the environment": set(os.environ) <= {"PYTHONHASHSEED", "LANG", "PWD", "LC_CTYPE"},
    }
"""


@lru_cache(maxsize=8)
def holds(isolation: Isolation) -> str:
    """Why this machine does not provide the isolation; empty if it does. Takes half a second."""
    sandbox = Sandbox(isolation, SandboxLimits())
    try:
        sandbox.warm()
        return _try_out(sandbox)
    except SandboxUnavailable as error:
        return str(error)
    finally:
        sandbox.close()


def check_isolation(isolation: Isolation) -> None:
    """Raise ValueError with the cure if this machine does not provide the isolation."""
    if isolation is Isolation.NAMESPACES and (hidden := below_tmp(own())):
        raise ValueError(
            "code rewards need a Python outside of /tmp, in place of which a program has its own,"
            f" got {hidden}; move it, or take another one"
        )
    if reason := holds(isolation):
        raise ValueError(
            f"code rewards need the isolation {str(isolation)!r}, this machine does not give it:"
            f" {reason}; {CURES[isolation]}"
        )


def _try_out(sandbox: Sandbox) -> str:
    with tempfile.TemporaryDirectory() as directory:
        canary = Path(directory) / "canary"
        canary.write_text("secret")
        os.chmod(directory, 0o755)
        attempts = Command.call("try_out", [str(canary), hidden_packages()], {"dict": []}, LIMIT_S)
        replies = sandbox.start(
            PROBE,
            limit_s=LIMIT_S,
            commands=[Command.call("add", [2, 3], {"dict": []}, LIMIT_S), attempts],
        )
    if len(replies) != 3 or (replies[1].kind, replies[1].value) != ("value", 5):
        return (
            f"a right program must give its result, the sandbox says {replies[-1].kind}"
            f" {replies[-1].value} {replies[-1].detail}"
        )
    tried = replies[2]
    if tried.kind != "value" or not isinstance(tried.value, dict):
        return f"a program inside can not be tried out ({tried.kind} {tried.value} {tried.detail})"
    through = [what for what, refused in dict(tried.value["dict"]).items() if refused is not True]
    if through:
        return f"a program inside can {' and '.join(through)}"
    (imported,) = sandbox.start(IMPORT, limit_s=LIMIT_S)
    if imported.kind != "value":
        return f"a program cannot read Python beneath {sys.base_prefix}: {imported.detail}"
    (endless,) = sandbox.start("while True: pass", limit_s=LOOP_S)
    return (
        ""
        if endless.kind == "timeout"
        else f"an endless program must be ended, the sandbox says {endless.kind}"
    )
