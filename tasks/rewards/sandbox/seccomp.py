"""The system calls that a candidate program may not make. Runs inside the sandbox: standard library only.

A filter that allows by default and refuses what starts processes or threads, reaches other processes, the network or kernel
interfaces: a list of what is allowed would break with every C library. Namespaces, limits and mounts refuse the rest.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
X32_BIT = 0x40000000

# Name, number on x86_64, number on aarch64; -1 where the machine has no such call.
_REFUSED = """
fork 57 -1 vfork 58 -1 clone 56 220 execve 59 221 execveat 322 281 kill 62 129 tkill 200 130 tgkill 234 131
rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 pidfd_send_signal 424 424 pidfd_open 434 434 pidfd_getfd 438 438
ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440 kcmp 312 272
socket 41 198 socketpair 53 199 connect 42 203 accept 43 202 accept4 288 242 bind 49 200 listen 50 201
sendto 44 206 recvfrom 45 207 sendmsg 46 211 recvmsg 47 212 sendmmsg 307 269 recvmmsg 299 243
mount 165 40 umount2 166 39 pivot_root 155 41 chroot 161 51 open_tree 428 428 move_mount 429 429 fsopen 430 430
fsconfig 431 431 fsmount 432 432 fspick 433 433 mount_setattr 442 442 unshare 272 97 setns 308 268
bpf 321 280 perf_event_open 298 241 io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427
userfaultfd 323 282 add_key 248 217 request_key 249 218 keyctl 250 219 shmget 29 194 shmat 30 196 shmctl 31 195
semget 64 190 semop 65 193 semctl 66 191 semtimedop 220 192 msgget 68 186 msgsnd 69 189 msgrcv 70 188 msgctl 71 187
mq_open 240 180 mq_unlink 241 181 memfd_create 319 279 memfd_secret 447 447 prlimit64 302 261 setrlimit 160 164
setsid 112 157 setpgid 109 154 setuid 105 146 setgid 106 144 setreuid 113 145 setregid 114 143 setresuid 117 147
setresgid 119 149 setgroups 116 159 capset 126 91 personality 135 92 prctl 157 167 seccomp 317 277
init_module 175 105 finit_module 313 273 delete_module 176 106 kexec_load 246 104 kexec_file_load 320 294 reboot 169 142
swapon 167 224 swapoff 168 225 sethostname 170 161 setdomainname 171 162 iopl 172 -1 ioperm 173 -1 modify_ldt 154 -1
quotactl 179 60 name_to_handle_at 303 264 open_by_handle_at 304 265 settimeofday 164 170 clock_settime 227 112
adjtimex 159 171 syslog 103 116 acct 163 89 fanotify_init 300 262 mlock 149 228 mlock2 325 284 mlockall 151 230
sched_setaffinity 203 122 sched_setscheduler 144 119 setpriority 141 140 ioprio_set 251 30
"""
_CLONE3 = 435  # answered with "no such call", so that the C library falls back to clone
_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}  # audit architecture, column of the table


class Program(ctypes.Structure):
    """`struct sock_fprog`: number and address of the instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refused_calls(machine: str) -> dict[str, int]:
    """Numbers of the refused calls by name. ValueError for a machine whose numbers are not known."""
    if machine not in _MACHINES:
        raise ValueError(f"system calls can be filtered on {' and '.join(_MACHINES)}, this machine is {machine}")
    words, column = _REFUSED.split(), _MACHINES[machine][1]
    rows = [words[start : start + 3] for start in range(0, len(words), 3)]
    return {row[0]: int(row[column]) for row in rows if int(row[column]) >= 0}


def assemble(machine: str) -> bytes:
    """The filter as BPF instructions: foreign architectures die, refused calls return EPERM, all others pass."""
    numbers = sorted(set(refused_calls(machine).values()))
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, _MACHINES[machine][0]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    code += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, KILL), (EQUAL, 0, 1, _CLONE3), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    code += [(EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class Filter:
    """The filter, assembled once and installed in every candidate's process."""

    def __init__(self) -> None:
        code = assemble(platform.machine())
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = Program(len(code) // 8, ctypes.addressof(self._code))
        self._libc = ctypes.CDLL(None, use_errno=True)

    def install(self) -> None:
        """From here on for this process, for ever. OSError if the kernel refuses it."""
        if self._libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or self._libc.prctl(
            PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(self._program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the kernel refused the filter of system calls")
