"""The digest that every record of a run carries: BLAKE3 over its name and all its other bytes.

    {"step": 7, ..., "blake3": "5f0c..."}       JSON, a line of a log, too: the last field
    PAR1 columns blake3:5f0c... footer PAR1     Parquet: before the footer, which readers go by

The record's name is hashed too, so that a record under another's name is detected. Leaves out
weights, whose digest is over tensors (`weights`).
"""

from __future__ import annotations

import os

from blake3 import blake3

NUM_DIGITS = 64  # hexadecimal
PARQUET = b"PAR1"


def with_digest(name: str, data: bytes) -> bytes:
    """Add the digest to the record `data`, a JSON object or a Parquet file."""
    body, begin, end, tail = _around_digest(data)
    return body + begin + _digest(name, body, tail) + end + tail


def without_digest(name: str, data: bytes, *, is_needed: bool) -> bytes:
    """Compare a record with its digest, and return the record without it. Raises ValueError if the
    two differ, or if the digest is missing and `is_needed`: earlier versions wrote none."""
    head, begin, end, tail = _around_digest(data)
    place = max(0, len(head) - len(begin) - NUM_DIGITS - len(end))
    body, kept = head[:place], head[place:]
    if not (kept.startswith(begin) and kept.endswith(end)):
        if is_needed:
            raise ValueError("it has no digest")
        return data
    wanted, found = kept[len(begin) : len(begin) + NUM_DIGITS], _digest(name, body, tail)
    if wanted != found:
        raise ValueError(f"its BLAKE3 is {found.decode()[:12]}, it was kept with {wanted[:12]!a}")
    return body + tail


def file_digest(path: str | os.PathLike[str]) -> str:
    """BLAKE3 of a file, computed on all cores."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _around_digest(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The bytes before the digest, the digest's own prefix and suffix, the bytes after it."""
    if data.startswith(PARQUET):
        footer = len(data) - len(PARQUET) - 4 - int.from_bytes(data[-8:-4], "little")
        return data[:footer], b"blake3:", b"", data[footer:]
    return data[:-1].rstrip(), b', "blake3": "', b'"', data[-1:]


def _digest(name: str, body: bytes, tail: bytes) -> bytes:
    return blake3(name.encode() + b"\0").update(body).update(tail).hexdigest().encode()
