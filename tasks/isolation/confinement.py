"""What a forked process behind walls does to itself before it runs what nobody trusts. Runs inside:
standard library only.

    private /tmp -> no capabilities -> streams -> limits -> ( filter of calls: `seccomp` )
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence

from tasks.isolation.namespaces import set_capabilities

PR_SET_PDEATHSIG, SIGKILL, CLONE_NEWNS = 1, 9, 0x20000
NOSUID, NODEV = 2, 4
STACK_BYTES = 64 << 20
NUM_INHERITED = 1 << 12  # descriptors of the fork server lie below
_LIBC = ctypes.CDLL(None, use_errno=True)
# Looked up before the fork: each page first touched after it costs.
_PREPARED = (_LIBC.prctl, _LIBC.unshare, _LIBC.mount)


def confine(tmp_bytes: int) -> None:
    """A private /tmp, no capabilities, a group of its own, and an end with the fork server's.
    OSError if the kernel refuses any of it."""
    _LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    os.setsid()
    if tmp_bytes:
        options = f"size={tmp_bytes},nr_inodes=1024,mode=700".encode()
        if _LIBC.unshare(CLONE_NEWNS) or _LIBC.mount(
            b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, options
        ):
            raise OSError(ctypes.get_errno(), "no private /tmp")
        os.chdir("/tmp")
    set_capabilities(0)


def connect(streams: Sequence[int]) -> None:
    """These descriptors at the places 0, 1, ..., everything else closed, the control socket above
    all."""
    first = max(*streams, len(streams)) + 1
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, first + place)
    for place in range(len(streams)):
        os.dup2(first + place, place)
    os.closerange(len(streams), NUM_INHERITED)


def limit(*, memory_bytes: int, file_bytes: int, num_files: int, cpu_s: int) -> None:
    """Bounds that the kernel holds it to: address space, the longest file, open files, processor
    time. Neither core dumps nor locked memory."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: num_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
