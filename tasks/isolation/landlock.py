"""Files out of reach without namespaces: the kernel's Landlock rules. Runs inside the sandbox:
standard library only.

The process and all its children may read what an interpreter needs and nothing else; nothing can be
written but /dev/null. Newer kernels also keep their signals in, and TCP out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
VERSION_FLAG, PATH_BENEATH, PR_SET_NO_NEW_PRIVS = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
BIND_TCP, CONNECT_TCP, ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1, 1 << 0, 1 << 1
SIZES_BY_ABI = ((6, 24), (4, 16), (1, 8))  # bytes of the rule set known from a version on
WRITABLE = "/dev/null"
NUM_RIGHTS_BY_ABI = {
    1: 13,
    2: 14,
    3: 15,
}  # file rights known to the kernel's version of Landlock; 16 from 5 on


class Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`; each field came with a version."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scoped"))


class PathRule(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The kernel's version of Landlock, 0 without it."""
    return max(
        0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG))
    )


def restrict_to_reading(paths: Sequence[str], *, has_network: bool = False) -> None:
    """From here on this process and its children may only read, and only beneath these paths.
    OSError without Landlock. `has_network`: TCP is left to them."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = abi()
    if version < 1:
        raise OSError(0, "the kernel has no Landlock")
    files = (1 << (NUM_RIGHTS_BY_ABI.get(version, 15 if version < 5 else 16))) - 1
    network = 0 if has_network else BIND_TCP | CONNECT_TCP
    rules = Ruleset(files, network, ABSTRACT_SOCKETS | SIGNALS)
    size = ctypes.c_size_t(next(size for since, size in SIZES_BY_ABI if version >= since))
    created = libc.syscall(CREATE_RULESET, ctypes.byref(rules), size, 0)
    ruleset = _checked(created, "create the rules")
    for path in filter(os.path.exists, paths):
        reading = READ_FILE | EXECUTE | (READ_DIRECTORY if os.path.isdir(path) else 0)
        _allow(libc, ruleset, path, reading)
    _allow(libc, ruleset, WRITABLE, READ_FILE | WRITE_FILE)
    _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
    _checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "apply the rules")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = PathRule(rights, beneath)
    _checked(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0), f"allow {path}")
    os.close(beneath)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the kernel refused to {what}")
    return result
