"""Messages between a process behind walls and its parent: a length, then as many bytes.

Over sockets the messages are JSON, not pickle, so that the parent never executes what a worker
sends. ASCII escapes carry lone surrogates unharmed. Between descriptors they are bytes. Runs also
inside: standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

MAX_FRAME_BYTES = 16 << 20
LENGTH = struct.Struct(">I")  # before every message, both ways
# what a fork server reports of a process that ended: its number, and its exit code as
# `waitstatus_to_exitcode` has it
ENDED = struct.Struct(">Ii")
CONFINED = b""  # the first message of a forked process: its walls stand; else why they do not
WALLS_S = 30.0  # from the order to fork to a process whose walls stand
DYING_S = 0.5  # from the closing of a process's streams to the report of its end
GRACE_S = 5.0  # for the report of the end of a killed process, or the rest of a greeting


def framed(body: bytes) -> bytes:
    """Returns the message as it is sent."""
    return LENGTH.pack(len(body)) + body


def write_message(descriptor: int, body: bytes) -> None:
    """Write one message to a descriptor that blocks."""
    left = memoryview(framed(body))
    while left:
        left = left[os.write(descriptor, left) :]


def read_message(descriptor: int) -> bytes | None:
    """Read one message from a descriptor that blocks; None at the end of the stream."""
    header = _read_bytes(descriptor, LENGTH.size)
    return None if header is None else _read_bytes(descriptor, LENGTH.unpack(header)[0])


def _read_bytes(descriptor: int, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        chunk = os.read(descriptor, count - len(found))
        if not chunk:
            return None
        found += chunk
    return bytes(found)


def send_frame(
    stream: socket.socket, message: dict[str, Json], deadline_s: float | None = None
) -> None:
    """Send one message. Raises TimeoutError and ConnectionError as `receive_frame`."""
    body = json.dumps(message).encode("ascii")
    stream.settimeout(_remaining(deadline_s))
    stream.sendall(framed(body))


def receive_frame(stream: socket.socket, deadline_s: float | None = None) -> dict[str, Json]:
    """Receive one message. Raises TimeoutError past the deadline (monotonic seconds), and
    ConnectionError if the peer is gone or sends no JSON object of at most MAX_FRAME_BYTES."""
    (length,) = LENGTH.unpack(_receive(stream, LENGTH.size, deadline_s))
    if length > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    body = _receive(stream, length, deadline_s)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionError("a frame that is not JSON") from error
    if not isinstance(message, dict):
        raise ConnectionError("a frame that is not an object")
    return message


def _receive(stream: socket.socket, num_bytes: int, deadline_s: float | None) -> bytes:
    chunks = bytearray()
    while len(chunks) < num_bytes:
        stream.settimeout(_remaining(deadline_s))
        chunk = stream.recv(min(num_bytes - len(chunks), 1 << 16))
        if not chunk:
            raise ConnectionResetError("the peer closed the stream")
        chunks += chunk
    return bytes(chunks)


def _remaining(deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    if (remaining_s := deadline_s - time.monotonic()) <= 0:
        raise TimeoutError("the deadline is past")
    return remaining_s
