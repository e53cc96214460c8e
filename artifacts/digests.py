"""The digest that every record of a run carries: BLAKE3 over its name and all its other bytes.

    {"step": 7, ..., "blake3": "5f0c..."}       JSON, a line of a log, too: the last field
    PAR1 columns blake3:5f0c... footer PAR1     Parquet: before the footer, which readers go by

The digest is in the record, so that the two are one write. The name is part of what is hashed, so
that a record in the place of another is found, too. Leaves out weights, whose digest is of tensors
(`weights`), and where a record may lack its digest (`Store`).
"""

from __future__ import annotations

import os

from blake3 import blake3

NUM_DIGITS = 64  # hexadecimal
PARQUET = b"PAR1"


def with_digest(name: str, data: bytes) -> bytes:
    """The record `data`, a JSON object or a Parquet file, with its digest."""
    body, begin, end, tail = _around_digest(data)
    return body + begin + _digest(name, body, tail) + end + tail


def without_digest(name: str, data: bytes, *, is_needed: bool) -> bytes:
    """The record without its digest, after comparing the two. Raises ValueError where they differ,
    or for a record without digest where one `is_needed`: earlier versions wrote none."""
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
    """BLAKE3 of a file, on all cores."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _around_digest(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The bytes before the digest, those that begin and end it, and those behind it."""
    if data.startswith(PARQUET):
        footer = len(data) - len(PARQUET) - 4 - int.from_bytes(data[-8:-4], "little")
        return data[:footer], b"blake3:", b"", data[footer:]
    return data[:-1].rstrip(), b', "blake3": "', b'"', data[-1:]


def _digest(name: str, body: bytes, tail: bytes) -> bytes:
    return blake3(name.encode() + b"\0").update(body).update(tail).hexdigest().encode()
