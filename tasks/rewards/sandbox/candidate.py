"""The process of one candidate program, from the fork to its end. Runs inside the sandbox: standard library only.

    private /tmp -> no capabilities -> streams -> limits -> filter -> wait -> program -> ( command -> call -> reply )*

From the filter on nothing in this process is trusted: a program may change whatever it finds here and forge every reply. It
knows the inputs of its tests and nothing of the expected results, and the host holds the clock.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from typing import Any

from artifacts.plain_values import from_json, to_json
from tasks.rewards.sandbox.seccomp import Filter

Message = dict[str, Any]  # Any: JSON values

PR_SET_PDEATHSIG, SIGKILL, CLONE_NEWNS, CAPABILITY_VERSION = 1, 9, 0x20000, 0x20080522
NOSUID, NODEV = 2, 4
COMMANDS, REPLIES = 3, 4  # the descriptors that the program's process keeps beside its standard streams
STACK_BYTES = 64 << 20
NUM_FILES = 32
NUM_INHERITED = 256  # descriptors of the fork server lie below
OUTPUT_FILE_BYTES = 4 << 20  # the longest file where there is no /tmp: the one that standard output is kept in
CPU_S = 600  # the host's clock ends a program long before
LENGTH = struct.Struct(">I")  # before every message, both ways
_LIBC = ctypes.CDLL(None, use_errno=True)
_PREPARED = (_LIBC.prctl, _LIBC.unshare, _LIBC.mount, _LIBC.capset)  # looked up before the fork: each page first touched after it costs


def run_program(memory_bytes: int, tmp_bytes: int, streams: tuple[int, ...], filter_calls: Filter) -> None:
    """Never returns. Builds the walls, waits for its program, runs it. The five streams become descriptors 0 to 4."""
    replies = streams[REPLIES]
    try:
        _confine(tmp_bytes)
        replies = _connect(streams)
        _limit(memory_bytes, tmp_bytes)
        filter_calls.install()
    except BaseException as error:  # a half-built wall must not run a program
        _write(replies, {"unconfined": f"{type(error).__name__}: {error}"})
        os._exit(1)
    try:
        start = _read(COMMANDS)
        if start is not None:
            _serve(start)
    finally:
        os._exit(0)


def _confine(tmp_bytes: int) -> None:
    """A private /tmp, no capabilities, and an end with the fork server's."""
    _LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if tmp_bytes:
        options = f"size={tmp_bytes},nr_inodes=1024,mode=700".encode()
        if _LIBC.unshare(CLONE_NEWNS) or _LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, options):
            raise OSError(ctypes.get_errno(), "no private /tmp")
        os.chdir("/tmp")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    if _LIBC.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def _connect(streams: tuple[int, ...]) -> int:
    """Standard streams and the two pipes at fixed places, everything else closed, the control socket above all; the pipe of replies."""
    first = max(*streams, len(streams)) + 1
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, first + place)
    for place in range(len(streams)):
        os.dup2(first + place, place)
    os.closerange(len(streams), first + len(streams) + 1)
    os.closerange(first + len(streams), NUM_INHERITED)
    return REPLIES


def _limit(memory_bytes: int, tmp_bytes: int) -> None:
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CPU: CPU_S,
        resource.RLIMIT_FSIZE: tmp_bytes or OUTPUT_FILE_BYTES,
        resource.RLIMIT_NOFILE: NUM_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))


def _serve(start: Message) -> None:
    if not start["is_main"]:
        os.dup2(2, 1)  # what it prints is thrown away
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which the interpreter's start leaves out here
    namespace: Message = {"__name__": "__main__" if start["is_main"] else "solution", "__builtins__": builtins}
    _reply(lambda: exec(compile(start["program"], "<program>", "exec", dont_inherit=True), namespace))
    if start["asks"]:
        namespace.update(dict.fromkeys((start["asks"], "candidate"), _ask))
    while (command := _read(COMMANDS)) is not None:
        _obey(command, namespace)


def _obey(command: Message, namespace: Message) -> None:
    if "statement" in command:
        _reply(lambda: exec(compile(command["statement"], "<test>", "exec", dont_inherit=True), namespace))
    else:
        _reply(lambda: namespace[command["function"]](*from_json(command["arguments"]), **from_json(command["named"])))


def _reply(work: Callable[[], object]) -> None:
    """Do it and say what came of it; what the program raises is data."""
    try:
        value = work()
        sys.stdout.flush()
        message: Message = {"value": to_json(value)}
        encoded = json.dumps(message).encode("ascii")
    except SystemExit as error:
        encoded = _exited(error)
    except MemoryError:
        encoded = b'{"memory": true}'
    except BaseException as error:
        encoded = json.dumps({"raised": type(error).__name__, "message": _words(error)}).encode("ascii")
    _write_bytes(REPLIES, encoded)


def _exited(error: SystemExit) -> bytes:
    try:
        sys.stdout.flush()
    except Exception:
        return b'{"raised": "OSError", "message": "its output could not be written"}'
    return b'{"exited": true}' if error.code in (None, 0) else b'{"raised": "SystemExit", "message": ""}'


def _words(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:
        return ""


def _ask(*arguments: object, **named: object) -> object:
    """The function under test, as a test program sees it: the question leaves this sandbox and the answer comes back."""
    _write(REPLIES, {"ask": {"arguments": to_json(list(arguments)), "named": to_json(named)}})
    answer = _read(COMMANDS)
    if answer is None:
        os._exit(0)
    if "raised" in answer:
        known = getattr(builtins, str(answer["raised"]), None)
        raise known() if isinstance(known, type) and issubclass(known, Exception) else RuntimeError(answer["raised"])
    return from_json(answer["value"])


def _read(descriptor: int) -> Message | None:
    """One message, or None at the end of the stream."""
    header = _read_bytes(descriptor, LENGTH.size)
    if header is None:
        return None
    body = _read_bytes(descriptor, LENGTH.unpack(header)[0])
    return None if body is None else dict(json.loads(body))


def _read_bytes(descriptor: int, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        chunk = os.read(descriptor, count - len(found))
        if not chunk:
            return None
        found += chunk
    return bytes(found)


def _write(descriptor: int, message: Message) -> None:
    _write_bytes(descriptor, json.dumps(message).encode("ascii"))


def _write_bytes(descriptor: int, body: bytes) -> None:
    left = memoryview(LENGTH.pack(len(body)) + body)
    while left:
        left = left[os.write(descriptor, left) :]
