"""Length-prefixed JSON over a stream socket: how a worker and its parent talk.

JSON, not pickle: what the worker sends is never code to the parent. ASCII escapes carry lone
surrogates unharmed.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

MAX_FRAME_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def send_frame(
    stream: socket.socket, message: dict[str, Json], deadline_s: float | None = None
) -> None:
    """Write one message; TimeoutError past the deadline (monotonic seconds), ConnectionError if the
    peer is gone."""
    body = json.dumps(message).encode("ascii")
    stream.settimeout(_remaining(deadline_s))
    stream.sendall(_LENGTH.pack(len(body)) + body)


def receive_frame(stream: socket.socket, deadline_s: float | None = None) -> dict[str, Json]:
    """Read one message; TimeoutError past the deadline, ConnectionError if the peer is gone or
    talks nonsense."""
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size, deadline_s))
    if length > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    try:
        message = json.loads(_read(stream, length, deadline_s))
    except (ValueError, RecursionError) as error:
        raise ConnectionError("a frame that is not JSON") from error
    if not isinstance(message, dict):
        raise ConnectionError("a frame that is not an object")
    return message


def _read(stream: socket.socket, num_bytes: int, deadline_s: float | None) -> bytes:
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
