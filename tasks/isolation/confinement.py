"""How processes behind walls give up what they could do. Runs inside: standard library only.

    fork server   namespaces: no user namespaces -> device read-only -> nobody, one capability
                  Landlock:   nobody -> rules: read what an interpreter needs, write /dev/null
    its child     ( pid namespace -> ) private /tmp -> no capabilities -> streams -> limits
                  -> filter of system calls (`seccomp`) -> CONFINED

The one capability is for the namespaces of the children, which give it up themselves. Landlock is
for machines without namespaces: its rules hold for the process and all its children; newer kernels
also keep their signals in, and TCP out.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.isolation.frames import CONFINED, write_message
from tasks.isolation.seccomp import SystemCallFilter

NOBODY = 65534
CLONE_NEWPID, REMOUNT_READ_ONLY = 0x20000000, 0x1 | 0x20 | 0x1000
MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # no set-uid, no devices, no execution: what was set stays set
PR_SET_KEEPCAPS, CAP_SYS_ADMIN, CAPABILITY_VERSION = 8, 1 << 21, 0x20080522
NAMESPACE_LIMIT = "/rollflow/max_user_namespaces"  # the kernel's, of our user namespace
DEVICE = "/dev/null"  # the only file that Landlock leaves writable

PR_SET_PDEATHSIG, SIGKILL, CLONE_NEWNS = 1, 9, 0x20000
NOSUID, NODEV = 2, 4
STACK_BYTES = 64 << 20
NUM_INHERITED = 1 << 12  # descriptors of the fork server lie below

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
VERSION_FLAG, PATH_BENEATH, PR_SET_NO_NEW_PRIVS = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
BIND_TCP, CONNECT_TCP, ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1, 1 << 0, 1 << 1
SIZES_BY_ABI = ((6, 24), (4, 16), (1, 8))  # bytes of the rule set known from a version on
# file rights known to the kernel's version of Landlock; 16 from 5 on
NUM_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}

_LIBC = ctypes.CDLL(None, use_errno=True)
# Looked up before the fork: each page first touched after it costs.
_PREPARED = (_LIBC.prctl, _LIBC.unshare, _LIBC.mount)
Fork = Callable[[], int]  # as `os.fork`


def confine_fork_server(readable: Sequence[str], *, has_network: bool = False) -> Fork:
    """Confine this process and all that it forks: by Landlock if readable paths are given, else
    within namespaces. Returns the function that forks. has_network: TCP stays allowed. Raises
    OSError if the kernel refuses any of it."""
    if not readable:
        # what bubblewrap's set-up left open
        Path(NAMESPACE_LIMIT).write_text("0")
        _checked(_LIBC.umount2(NAMESPACE_LIMIT.encode(), 0), "take the setting away")
        flags = REMOUNT_READ_ONLY | (os.statvfs(DEVICE).f_flag & MOUNT_FLAGS)
        mounted = _LIBC.mount(None, DEVICE.encode(), None, flags, None)
        _checked(mounted, "make a device read-only")
        become_nobody(CAP_SYS_ADMIN)
        return forking_apart()
    become_nobody()
    restrict_to_reading(readable, has_network=has_network)
    return os.fork


def become_nobody(capabilities: int = 0) -> None:
    """Become nobody for good if the process is root's; then keep these capabilities alone."""
    if os.getuid() == 0:
        _checked(_LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    set_capabilities(capabilities)


def set_capabilities(capabilities: int) -> None:
    """Give up all capabilities but these. Raises OSError if the process does not have these."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)(capabilities, capabilities)  # effective, permitted
    _checked(_LIBC.capset(header, sets), "change capabilities")


def forking_apart() -> Fork:
    """Returns an `os.fork` whose child is alone in a pid namespace."""
    own = os.pidfd_open(os.getpid())

    def fork() -> int:
        _checked(_LIBC.unshare(CLONE_NEWPID), "make a pid namespace")
        pid = os.fork()
        if pid:
            _checked(_LIBC.setns(own, CLONE_NEWPID), "leave a pid namespace")
        return pid

    return fork


class Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`; each field came with a version."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scoped"))


class PathRule(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_to_reading(paths: Sequence[str], *, has_network: bool = False) -> None:
    """Let this process and its children only read, beneath these paths. has_network: TCP stays
    allowed. Raises OSError without Landlock."""
    version = int(_LIBC.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG))
    if version < 1:
        raise OSError(0, "the kernel has no Landlock")
    files = (1 << NUM_RIGHTS_BY_ABI.get(version, 16)) - 1
    network = 0 if has_network else BIND_TCP | CONNECT_TCP
    rules = Ruleset(files, network, ABSTRACT_SOCKETS | SIGNALS)
    size = ctypes.c_size_t(next(size for since, size in SIZES_BY_ABI if version >= since))
    created = _LIBC.syscall(CREATE_RULESET, ctypes.byref(rules), size, 0)
    ruleset = _checked(created, "create the rules")
    for path in filter(os.path.exists, paths):
        reading = READ_FILE | EXECUTE | (READ_DIRECTORY if os.path.isdir(path) else 0)
        _allow(ruleset, path, reading)
    _allow(ruleset, DEVICE, READ_FILE | WRITE_FILE)
    _checked(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
    _checked(_LIBC.syscall(RESTRICT_SELF, ruleset, 0), "apply the rules")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = PathRule(rights, beneath)
    _checked(_LIBC.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0), f"allow {path}")
    os.close(beneath)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the kernel refused to {what}")
    return result


def enclose(
    streams: Sequence[int | None],
    calls: SystemCallFilter,
    *,
    tmp_bytes: int,
    memory_bytes: int,
    file_bytes: int,
    num_files: int,
    cpu_s: int,
) -> None:
    """Build the walls around this process and report CONFINED on the last of its streams, or why
    the walls do not stand, and end.

    streams: descriptors that become 0, 1, ... (None: /dev/null); all others are closed, above all
    the control socket. The other bounds are of its private /tmp (0: none), address space, longest
    file, open files and processor seconds.
    """
    report = streams[-1]
    assert report is not None, "somebody waits for the report"
    try:
        _LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)  # with the fork server
        os.setsid()
        if tmp_bytes:
            options = f"size={tmp_bytes},nr_inodes=1024,mode=700".encode()
            if _LIBC.unshare(CLONE_NEWNS) or _LIBC.mount(
                b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, options
            ):
                raise OSError(ctypes.get_errno(), "no private /tmp")
            os.chdir("/tmp")
        set_capabilities(0)
        nothing = os.open(DEVICE, os.O_RDWR)  # own descriptor, with flags of its own
        _connect([nothing if stream is None else stream for stream in streams])
        report = len(streams) - 1
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
        calls.install()
    except BaseException as error:  # behind half-built walls runs no program
        write_message(report, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        os._exit(1)
    write_message(report, CONFINED)


def _connect(streams: Sequence[int]) -> None:
    first = max(*streams, len(streams)) + 1
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, first + place)
    for place in range(len(streams)):
        os.dup2(first + place, place)
    os.closerange(len(streams), NUM_INHERITED)
