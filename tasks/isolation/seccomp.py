"""The system calls that a process behind walls may make. Runs inside: standard library only.

A list of what CPython and its library need of the kernel to compute, to keep the time and to use
files; everything else is refused, including calls that later kernels add: no process or thread is
started, no other process signalled or slowed, and no network or kernel interface reached.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4  # where `struct seccomp_data` has them
ARGUMENTS = 16  # and these, two words each, the lower one first
X32_BIT = 0x40000000
FIRST_PROBED = 435  # clone3: from here on a C library falls back where the kernel has no such call

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
_REFUSE_OR_ALLOW: list[Instruction] = [(RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)]

# Name, number on x86_64, number on aarch64; -1 where the machine has no such call.
_ALLOWED = """
read 0 63 write 1 64 readv 19 65 writev 20 66 pread64 17 67 pwrite64 18 68 preadv 295 69
pwritev 296 70 lseek 8 62 close 3 57 close_range 436 436 dup 32 23 dup2 33 -1 dup3 292 24
pipe 22 -1 pipe2 293 59 sendfile 40 71 copy_file_range 326 285 open 2 -1 openat 257 56 stat 4 -1
fstat 5 80 lstat 6 -1 newfstatat 262 79 statx 332 291 access 21 -1 faccessat 269 48
faccessat2 439 439 readlink 89 -1 readlinkat 267 78 getdents 78 -1 getdents64 217 61 statfs 137 43
fstatfs 138 44 mkdir 83 -1 mkdirat 258 34 rmdir 84 -1 unlink 87 -1 unlinkat 263 35 rename 82 -1
renameat 264 38 renameat2 316 276 link 86 -1 linkat 265 37 symlink 88 -1 symlinkat 266 36
ftruncate 77 46 fallocate 285 47 fsync 74 82 fdatasync 75 83 getcwd 79 17 chdir 80 49 fchdir 81 50
umask 95 166 brk 12 214 munmap 11 215 mremap 25 216 mprotect 10 226 msync 26 227 poll 7 -1
ppoll 271 73 select 23 -1 pselect6 270 72 pause 34 -1 futex 202 98 set_robust_list 273 99
set_tid_address 218 96 rseq 334 293 sched_yield 24 124 rt_sigaction 13 134 rt_sigprocmask 14 135
rt_sigreturn 15 139 rt_sigpending 127 136 rt_sigsuspend 130 133 rt_sigtimedwait 128 137
sigaltstack 131 132 restart_syscall 219 128 alarm 37 -1 setitimer 38 103 getitimer 36 102
clock_gettime 228 113 clock_getres 229 114 clock_nanosleep 230 115 nanosleep 35 101
gettimeofday 96 169 time 201 -1 times 100 153 getrusage 98 165 getcpu 309 168 getpid 39 172
getppid 110 173 gettid 186 178 getuid 102 174 geteuid 107 175 getgid 104 176 getegid 108 177
getresuid 118 148 getresgid 120 150 getgroups 115 158 getpgrp 111 -1 getpgid 121 155
getsid 124 156 uname 63 160 sysinfo 99 179 sched_getaffinity 204 123 getpriority 140 141
getrandom 318 278 getrlimit 97 163 exit 60 93 exit_group 231 94
"""
# For a program with files of its own. Landlock does not bound these to the paths that it allows.
_ALLOWED_WITH_FILES = """
truncate 76 45 chmod 90 -1 fchmod 91 52 fchmodat 268 53 utime 132 -1 utimes 235 -1
futimesat 261 -1 utimensat 280 88 getxattr 191 8 lgetxattr 192 9 fgetxattr 193 10 listxattr 194 11
llistxattr 195 12 flistxattr 196 13
"""
# For a process that may reach the network; `socket` itself is checked.
_ALLOWED_WITH_NETWORK = """
connect 42 203 sendto 44 206 recvfrom 45 207 sendmsg 46 211 recvmsg 47 212 sendmmsg 307 269
recvmmsg 299 243 shutdown 48 210 getsockname 51 204 getpeername 52 205 setsockopt 54 208
getsockopt 55 209
"""
_SOCKET = "socket 41 198"  # of the families IPv4 and IPv6
FAMILIES = (2, 10)
# Allowed with some arguments, `_CHECKS` says which.
_BOUNDED = "fcntl 72 25 ioctl 16 29 mmap 9 222 madvise 28 233 prlimit64 302 261"

F_SETFL, O_ASYNC = 4, 0x2000
# Duplicate, flags, locks, a pipe's size. Not: receiver of signals, leases, notices, new size.
FCNTL_COMMANDS = (0, 1, 2, 3, 5, 6, 7, 1030, 1032)
# Is it a terminal, its size, bytes to be read, do not block, close in a new program or not.
# Not: FIOASYNC, FIOSETOWN and whatever devices know.
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Normal, random, sequential, needed, not needed, free, huge pages or none.
# Not: what takes pages that others share from them.
MADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
MAP_LOCKED, MAP_HUGETLB = 0x2000, 0x40000  # memory that others could not get
# Audit architecture, column of the tables.
_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog`: number and address of the instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def allowed_calls(machine: str, *, has_files: bool, has_network: bool = False) -> dict[str, int]:
    """Returns the numbers that pass with any argument. Raises ValueError for an unknown machine."""
    files = _ALLOWED_WITH_FILES if has_files else ""
    network = _ALLOWED_WITH_NETWORK if has_network else ""
    return _numbers(_ALLOWED + files + network, machine)


def _numbers(table: str, machine: str) -> dict[str, int]:
    if machine not in _MACHINES:
        known = " and ".join(_MACHINES)
        raise ValueError(f"system calls can be filtered on {known}, this machine is {machine}")
    words, column = table.split(), _MACHINES[machine][1]
    rows = [words[start : start + 3] for start in range(0, len(words), 3)]
    return {row[0]: int(row[column]) for row in rows if int(row[column]) >= 0}


def assemble(machine: str, *, has_files: bool, has_network: bool = False) -> bytes:
    """Assemble the filter as BPF instructions. A call of a foreign architecture kills the process;
    a call that is on no list is refused."""
    allowed = allowed_calls(machine, has_files=has_files, has_network=has_network)
    bounded = f"{_BOUNDED} {_SOCKET}" if has_network else _BOUNDED
    verdicts = _verdicts(set(allowed.values()))
    code: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, _MACHINES[machine][0]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    for name, number in _numbers(bounded, machine).items():
        check = _CHECKS[name]
        code += [(EQUAL, 0, len(check), number), *check]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*code, *_tree(verdicts)])


def _verdicts(allowed: set[int]) -> list[tuple[int, int]]:
    """Returns the call numbers from which on another verdict holds, from 0 on."""
    found: list[tuple[int, int]] = []
    for number in range(max(*allowed, FIRST_PROBED) + 2):
        refused = REFUSE | (errno.ENOSYS if number >= FIRST_PROBED else errno.EPERM)
        verdict = ALLOW if number in allowed else refused
        if not found or found[-1][1] != verdict:
            found.append((number, verdict))
    return [*found, (X32_BIT, KILL)]


def _tree(verdicts: list[tuple[int, int]]) -> list[Instruction]:
    """Build a binary search: at installation the kernel tries each number, so length costs."""
    if len(verdicts) == 1:
        return [(RETURN, 0, 0, verdicts[0][1])]
    lower, upper = verdicts[: len(verdicts) // 2], verdicts[len(verdicts) // 2 :]
    below = _tree(lower)
    return [(AT_LEAST, len(below), 0, upper[0][0]), *below, *_tree(upper)]


def _lower(argument: int) -> Instruction:
    """Load the lower word: of an `int` the kernel reads no more."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * argument)


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow the call if this `int` is one of these values."""
    jumps = [(EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_lower(argument), *jumps, *_REFUSE_OR_ALLOW]


def _without(argument: int, bits: int) -> list[Instruction]:
    """Allow the call if this argument has none of these bits."""
    return [_lower(argument), (ANY_BIT, 0, 1, bits), *_REFUSE_OR_ALLOW]


def _null(argument: int) -> list[Instruction]:
    """Allow the call if this argument is a null pointer in both words."""
    upper = (LOAD, 0, 0, ARGUMENTS + 8 * argument + 4)
    return [_lower(argument), (EQUAL, 0, 2, 0), upper, (EQUAL, 1, 0, 0), *_REFUSE_OR_ALLOW]


_SETTING_FLAGS = _without(2, O_ASYNC)
_CHECKS = {
    "fcntl": [
        _lower(1),
        (EQUAL, 0, len(_SETTING_FLAGS), F_SETFL),
        *_SETTING_FLAGS,
        *_one_of(1, FCNTL_COMMANDS),
    ],
    "ioctl": _one_of(1, IOCTL_COMMANDS),
    "mmap": _without(3, MAP_LOCKED | MAP_HUGETLB),
    "madvise": _one_of(2, MADVICE),
    "prlimit64": _null(2),  # limits may be read
    "socket": _one_of(0, FAMILIES),
}


class SystemCallFilter:
    """The filter, assembled once and installed in every process that is forked."""

    def __init__(self, *, has_files: bool, has_network: bool = False) -> None:
        code = assemble(platform.machine(), has_files=has_files, has_network=has_network)
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = FilterProgram(len(code) // 8, ctypes.addressof(self._code))
        self._libc = ctypes.CDLL(None, use_errno=True)

    def install(self) -> None:
        """Install the filter for good. Raises OSError if the kernel refuses it."""
        if self._libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or self._libc.prctl(
            PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(self._program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the kernel refused the filter of system calls")
