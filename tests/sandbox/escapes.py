"""Attempts to get out of the sandbox, or to get a reward without earning it.

Every attempt is the body of `solve(x)`. What follows it is reached only by an attempt that works,
and then `won()` gives the expected value away, so a pass is a breach. Programs that are attempts as
a whole are in `WHOLE`.
"""

# ruff: noqa: E501

from __future__ import annotations

LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef must(result):\n    if result < 0:\n        raise OSError(ctypes.get_errno(), 'refused')\n"

PIPE = LIBC + "import os\nfirst, second = os.pipe()\n"

# Name -> statements that must not all succeed. CANARY, PORT, SECRET and PACKAGES are filled in by
# the test.
ATTEMPTS: dict[str, str] = {
    # the network
    "tcp": "import socket; socket.create_connection(('127.0.0.1', PORT), timeout=1)",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "abstract unix socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0anything')",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "socket pair": "import socket; socket.socketpair()",
    "name look-up": "import socket; socket.getaddrinfo('localhost', PORT)",
    "raw socket call": LIBC + "must(libc.syscall(41, 2, 1, 0)); must(libc.syscall(198, 2, 1, 0))",
    "download": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT/', timeout=1)",
    # the machine's files and secrets
    "host file": "open(CANARY).read()",
    "host file through a link": "import os; os.symlink(CANARY, '/tmp/link'); open('/tmp/link').read()",
    "host file through a hard link": "import os; os.link(CANARY, '/tmp/link'); open('/tmp/link').read()",
    "host file by a detour": "open('/usr/lib/../..' + CANARY).read()",
    "passwords": "open('/etc/shadow').read()",
    "users": "open('/etc/passwd').read()",
    "home": "import os; os.listdir('/root'); os.listdir('/home')",
    "own memory": "open('/proc/self/mem', 'rb')",
    "environment of the first process": "open('/proc/1/environ', 'rb').read()",
    "list of processes": "import os; assert any(name.isdigit() for name in os.listdir('/proc'))",
    "root of a process": "import os; os.listdir('/proc/self/root')",
    "kernel settings": "open('/sys/kernel/notes', 'rb').read()",
    "shared memory": "open('/dev/shm/left', 'w').write('x')",
    "disk device": "import os; os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0)); open('/tmp/disk', 'rb').read(1)",
    "environment": "import os; assert SECRET in str(dict(os.environ))",
    "environment of the C library": LIBC + "libc.getenv.restype = ctypes.c_char_p\nassert libc.getenv(b'ROLLFLOW_SECRET')",
    "write to the system": "open('/usr/lib/left', 'w').write('x')",
    "write to the root": "import os; os.mkdir('/left')",
    "write to the harness": "import sys; open(sys.modules['tasks.rewards.programs.sandbox.candidate'].__file__, 'a').write('#')",
    "delete the harness": "import os, sys; os.remove(sys.modules['tasks.rewards.programs.sandbox.candidate'].__file__)",
    "read the tests": "import glob; assert glob.glob('/rollflow/tests/*') + glob.glob('/rollflow/**/test*', recursive=True)",
    # processes and threads
    "fork": "import os; os.fork()",
    "fork with a terminal": "import os; os.forkpty()",
    "subprocess": "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)",
    "shell": "import os; assert os.system('true') == 0",
    "spawn": "import os, sys; os.posix_spawn(sys.executable, ['python', '-c', ''], {})",
    "multiprocessing": "import multiprocessing; multiprocessing.Process(target=print).start()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "raw clone": LIBC + "must(libc.syscall(56, 17, 0, 0, 0, 0))",
    "raw clone3": LIBC + "args = (ctypes.c_uint64 * 11)()\nargs[4] = 17\nmust(libc.syscall(435, args, 88))",
    "raw vfork": LIBC + "must(libc.syscall(58))",
    "anonymous program": LIBC + "must(libc.syscall(319, b'x', 0))",
    "x32 calls": LIBC + "must(libc.syscall(0x40000000 + 57))",
    # other processes
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "kill the first process": "import os; os.kill(1, 9)",
    "kill everything": "import os; os.kill(-1, 9)",
    "kill the group": "import os; os.killpg(0, 9)",
    "signal by descriptor": "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
    "trace the parent": LIBC + "import os\nmust(libc.ptrace(16, os.getppid(), 0, 0))",
    "read the parent's memory": LIBC + "import os\nmust(libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0))",
    "survive the parent": LIBC + "must(libc.prctl(1, 0, 0, 0, 0))",
    "leave the session": "import os; os.setsid()",
    "see the parent": "import os; assert os.getpgrp() != os.getpid()",
    # signals without `kill`, and neighbours stopped or slowed
    "signals of a pipe to a process": PIPE + "must(libc.fcntl(first, 8, os.getpid()))",
    "signals of a pipe to a group": PIPE + "must(libc.fcntl(first, 8, -os.getpgrp()))",
    "signals of a pipe with upper bits": PIPE + "must(libc.syscall(72, first, ctypes.c_ulong((1 << 32) + 8), os.getpid()))",
    "signals of a pipe to a thread": PIPE + "must(libc.fcntl(first, 15, (ctypes.c_int * 2)(0, os.getpid())))",
    "number of a pipe's signal": PIPE + "must(libc.fcntl(first, 10, 9))",
    "signals of a pipe switched on": PIPE + "must(libc.fcntl(first, 4, os.O_NONBLOCK | 0x2000))",
    "signals of a pipe switched on by a device call": PIPE + "must(libc.ioctl(first, 0x5452, ctypes.byref(ctypes.c_int(1))))",
    "notices of a directory": LIBC + "import os\nmust(libc.fcntl(os.open('/usr/lib', 0), 1026, 2))",
    "signals of a timer": LIBC + "must(libc.syscall(222, 0, None, ctypes.byref(ctypes.c_int())))",
    "larger pipe": PIPE + "must(libc.fcntl(first, 1031, 1 << 20))",
    "smaller pipe of commands": LIBC + "must(libc.fcntl(3, 1031, 4096))",
    "larger pipe of replies": LIBC + "must(libc.fcntl(4, 1031, 1 << 20))",
    "scheduling by attributes": LIBC + "import struct\nmust(libc.syscall(314, 0, struct.pack('IIQiIQQQ', 48, 3, 0, 0, 0, 0, 0, 0), 0))",
    "scheduling by a parameter": LIBC + "must(libc.syscall(142, 0, ctypes.byref(ctypes.c_int(0))))",
    "scheduling by a class": "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "niceness": "import os; os.setpriority(os.PRIO_PROCESS, 0, 5)",
    "processors": "import os; os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "every disk written out": LIBC + "must(libc.syscall(162))",
    "every processor interrupted": LIBC + "must(libc.syscall(324, 1, 0))",
    "cached pages thrown away": LIBC + "must(libc.syscall(221, 0, 0, 0, 4))",
    "huge pages": LIBC + "libc.mmap(None, ctypes.c_size_t(1 << 21), 3, 0x40022, -1, ctypes.c_long(0))\nassert ctypes.get_errno() != 1",
    "watches of the user": LIBC + "must(libc.syscall(294, 0))",
    "rules of its own": LIBC + "must(libc.syscall(444, None, 0, 1))",
    "fifo": "import os; os.mkfifo('/tmp/fifo')",
    # devices and packages of the machine
    "mode of a device": "import os; os.chmod('/dev/null', 0o666)",
    "mode of an open device": "import os; os.fchmod(2, 0o666)",
    "times of a device": "import os; os.utime('/dev/null')",
    "times of an open device": "import os; os.utime(2)",
    "owner of an own file": "import os; os.fchown(1, os.getuid(), os.getgid())",
    "attributes of a file": "import os; os.setxattr(1, 'user.left', b'x')",
    "endless device": "open('/dev/zero', 'rb').read(1)",
    "installed packages": "import os; assert os.listdir(PACKAGES)",
    "installed packages of anybody": "import glob; assert glob.glob('/usr/lib/python*/*-packages/*') + glob.glob('/usr/local/lib/python*/*-packages/*')",
    # privileges and limits
    "new user namespace": LIBC + "must(libc.unshare(0x10000000))",
    "new mount namespace": LIBC + "must(libc.unshare(0x20000))",
    "mount": LIBC + "must(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))",
    "unmount": LIBC + "must(libc.umount2(b'/tmp', 2))",
    "change of root": "import os; os.chroot('/tmp')",
    "become root": "import os; os.setuid(0); assert os.getuid() == 0",
    "capabilities": LIBC + "header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[1 << 21] * 6)\nmust(libc.capset(header, data))",
    "keys of the kernel": LIBC + "must(libc.syscall(250, 0, -3, 0))",
    "kernel programs": LIBC + "must(libc.syscall(321, 0, None, 0))",
    "asynchronous calls": LIBC + "must(libc.syscall(425, 1, None))",
    "raise the limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise the limit of a file": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))",
    "fill the disk": "out = open('/tmp/full', 'wb')\nfor _ in range(2000): out.write(b'x' * 100_000)\nout.close()",
    "many files": "for number in range(5000): open(f'/tmp/{number}', 'w').close()",
    "many open files": "kept = [open('/dev/null') for _ in range(1000)]",
    # memory and time
    "memory": "kept = []\nwhile len(kept) < 100: kept.append(bytearray(50_000_000))",
    "one large object": "kept = 'a' * 10**12",
    "mapped memory": "import mmap; kept = mmap.mmap(-1, 4 << 30)",
    "locked memory": LIBC + "must(libc.mlockall(3))",
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread bomb": "import threading, time\nfor _ in range(10_000): threading.Thread(target=time.sleep, args=(99,)).start()",
    "endless loop": "while True: pass",
    "endless arithmetic": "kept = 7 ** (7 ** 9)",
    "endless pattern": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "sleep": "import time; time.sleep(3600)",
    "endless loop that ignores signals": "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "endless loop that blocks signals": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "endless exception": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "recursion": "def down(): return down()\ndown()",
    "recursion without a limit": "import sys; sys.setrecursionlimit(10**9)\ndef down(depth): return down(depth + 1)\ndown(0)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "stop": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    # verdicts that are not earned
    "exit with success": "import os; os._exit(0)",
    "raise exit": "raise SystemExit(0)",
    "exit in a handler": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit",
    "say that it passed": "print('PASS', 'ok', flush=True); return True",
    "equal to everything": "class Any:\n    def __eq__(self, other): return True\nreturn Any()",
    "text that is equal to everything": "class Any(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\nreturn Any('x')",
    "patched builtins": "import builtins\nbuiltins.isinstance = builtins.all = builtins.bool = lambda *_: True\nreturn 'x'",
    "patched comparison": "import artifacts.datasets.plain_values as values\nvalues.same = lambda *_: True\nreturn 'x'",
    "patched encoding": "import json\njson.dumps = lambda *_, **__: '{\"value\": true, \"verdict\": \"pass\"}'\nreturn 'x'",
    "frame with a verdict": "import os, struct\nbody = b'{\"kind\": \"value\", \"verdict\": \"pass\"}'\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "frame with a guess": "import os, struct\nbody = b'{\"value\": \"guess\"}'\nos.write(4, (struct.pack('>I', len(body)) + body) * 50)\nreturn 'x'",
    "frame with a question": "import os, struct\nbody = b'{\"ask\": {\"arguments\": [], \"named\": {}}}'\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "frame of the harness": "import os, struct\nbody = b'{\"unconfined\": \"x\"}'\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "frame that says nothing": "import os, struct\nos.write(4, struct.pack('>I', 0))\nreturn 'x'",
    "frame with two values": "import os, struct\nbody = b'{\"value\": \"x\", \"verdict\": \"pass\"}'\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "frame with an endless number": "import os, struct\nbody = b'{\"value\": {\"complex\": [1' + b'0' * 400 + b', 0.0]}}'\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "numbers that collide": "return {number * (2**61 - 1): 0 for number in range(6000)}",
    "frame without an end": "import os, struct\nos.write(4, struct.pack('>I', 1 << 31) + b'x')\nreturn 'x'",
    "frame of junk": "import os, struct\nos.write(4, struct.pack('>I', 9) + b'\\xff' * 9)\nreturn 'x'",
    "frame of nesting": "import os, struct\nbody = b'[' * 100_000\nos.write(4, struct.pack('>I', len(body)) + body)\nreturn 'x'",
    "closed streams": "import os; os.closerange(0, 100); return 'x'",
    "exchanged streams": "import os; os.dup2(1, 4); return 'x'",
    "streams that never end": "import os, struct\nos.write(4, struct.pack('>I', 200_000))\nwhile True: os.write(4, b' ')",
    "hunt through the frames": "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n        if EXPECTED in str(value): return won()\n    frame = frame.f_back\nreturn None",
    "hunt through the heap": "import gc\nfor value in gc.get_objects():\n    if type(value) in (dict, list, tuple) and EXPECTED in str(value)[:100_000]: return won()\nreturn None",
    "hunt through the commands": "import os\nos.set_blocking(3, False)\nassert EXPECTED in os.read(3, 1 << 20).decode()",
    "nested result": "kept = []\nfor _ in range(10**6): kept = [kept]\nreturn kept",
    "huge result": "return 'x' * 10**8",
    "long number": "return 10**5000",
    "endless result": "return iter(int, 1)",
    "result that contains itself": "kept = []; kept.append(kept); return kept",
    "not a number": "return float('nan')",
    "code as a result": "import pickle; return pickle.dumps(print)",
    "late mischief": "class Late:\n    def __del__(self): print('x' * 10**6)\nkept = Late()\nimport atexit; atexit.register(print, 'x')\nreturn 'x'",
    "generator": "yield won()",
    "input": "return input()",
    "endless output": "while True: print('x' * 10_000)",
}  # fmt: skip

# Attempts that nothing but the clock ends.
ENDLESS = {
    "endless loop", "endless arithmetic", "endless pattern", "sleep", "endless loop that ignores signals", "endless exception",
    "endless loop that blocks signals", "endless output", "endless while it is loaded", "harness replaced", "streams that never end",
    "recursion without a limit", "closed streams",
}  # fmt: skip

# Whole texts, for what must happen while the program is loaded.
WHOLE: dict[str, str] = {
    "nothing": "",
    "no function": "x = 1",
    "text that is no program": "I am afraid I cannot write that function.",
    "unfinished": "def solve(x):\n    return (",
    "nothing but a null byte": "\0",
    "lone surrogate": "solve = '\ud800'",
    "deep nesting": "(" * 100_000,
    "long expression": "x = " + "+".join(["1"] * 200_000),
    "exit while it is loaded": "import sys; sys.exit(0)",
    "hard exit while it is loaded": "import os; os._exit(0)",
    "endless while it is loaded": "while True: pass",
    "function that is a number": "solve = 49",
    "function with a trap": "class Trap:\n    def __call__(self, x): return self\n    def __eq__(self, other): return True\nsolve = Trap()",
    "loader replaced": "import builtins\nbuiltins.exec = builtins.compile = print\ndef solve(x): return 'x'",
    "harness replaced": "import tasks.rewards.programs.sandbox.candidate as harness\nharness._reply = harness.write_message = print\ndef solve(x): return 'x'",
    "import of the machine's packages": "import numpy\ndef solve(x): return numpy.int64(x)",
    "encoding trick": "# coding: utf-7\ndef solve(x): return '+AGE-'",
}  # fmt: skip

# Reads every page in which a live object lies, freed memory on it included. The mark is searched in
# halves, since put together it would find itself. Gives the expected value if the mark is nowhere.
LOOK_THROUGH_MEMORY = """
import ctypes, gc
def solve(x):
    pages = {id(value) >> 12 for value in gc.get_objects()} | {id(value) >> 12 for kept in gc.get_objects() for value in gc.get_referents(kept)}
    for page in pages:
        data = ctypes.string_at(page << 12, 4096)
        place = data.find(FIRST)
        while place >= 0:
            if data[place + len(FIRST) : place + len(FIRST) + len(SECOND)] == SECOND:
                return "found"
            place = data.find(FIRST, place + 1)
    return "the expected value"
"""
