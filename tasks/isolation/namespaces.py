"""What the fork server does within bubblewrap's walls. Runs inside: standard library only.

    no user namespaces -> device read-only -> nobody, one capability -> ( pid namespace -> fork )*

The one capability is for the namespaces of the programs, which give it up themselves.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
CLONE_NEWPID, REMOUNT_READ_ONLY = 0x20000000, 0x1 | 0x20 | 0x1000
MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # no set-uid, no devices, no execution: what was set stays set
PR_SET_KEEPCAPS, CAP_SYS_ADMIN, CAPABILITY_VERSION = 8, 1 << 21, 0x20080522
NAMESPACE_LIMIT = "/rollflow/max_user_namespaces"  # the kernel's, of our user namespace
DEVICE = "/dev/null"
_LIBC = ctypes.CDLL(None, use_errno=True)

Fork = Callable[[], int]  # as `os.fork`


def settle() -> None:
    """Close what the set-up left open, and be nobody. OSError if the kernel refuses any of it."""
    Path(NAMESPACE_LIMIT).write_text("0")
    _checked(_LIBC.umount2(NAMESPACE_LIMIT.encode(), 0), "take the setting away")
    flags = REMOUNT_READ_ONLY | (os.statvfs(DEVICE).f_flag & MOUNT_FLAGS)
    _checked(_LIBC.mount(None, DEVICE.encode(), None, flags, None), "make a device read-only")
    become_nobody(CAP_SYS_ADMIN)


def become_nobody(capabilities: int = 0) -> None:
    """Become an unprivileged user for good, with these capabilities alone, if the process is
    root's."""
    if os.getuid() == 0:
        _checked(_LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    set_capabilities(capabilities)


def set_capabilities(capabilities: int) -> None:
    """Give up all others. OSError if the process does not have them."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)(capabilities, capabilities)  # effective, permitted
    _checked(_LIBC.capset(header, sets), "change capabilities")


def forking_apart() -> Fork:
    """Like `os.fork`, but the child is alone in a pid namespace and can name no other process."""
    own = os.pidfd_open(os.getpid())

    def fork() -> int:
        _checked(_LIBC.unshare(CLONE_NEWPID), "make a pid namespace")
        pid = os.fork()
        if pid:
            _checked(_LIBC.setns(own, CLONE_NEWPID), "leave a pid namespace")
        return pid

    return fork


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the kernel refused to {what}")
