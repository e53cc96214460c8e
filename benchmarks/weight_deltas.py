"""Does a version come sooner as its difference to the one before?

    python -m benchmarks.weight_deltas OLD.safetensors NEW.safetensors

Of two consecutive versions of a run (they lie in /dev/shm/rollflow-RUN while it goes on): bytes of
the difference over all bytes, how fast one core encodes and decodes it, and up to which rate of a
link it is the faster way, where shards are encoded, sent and decoded side by side and where each
of them waits for the other. Every shard is checked to come out as it was.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

from artifacts.weight_deltas import decode, encode
from artifacts.weight_shards import suitable_shard_bytes


def main() -> None:
    """Print medians over the repeats."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    old, new = given.old.read_bytes(), given.new.read_bytes()
    if len(old) != len(new):
        parser.error(f"versions must be of one size, got {len(old)} and {len(new)} bytes")
    measured = [_measure(old, new) for _ in range(given.repeats)]
    sent, encode_s, decode_s = (median(column) for column in zip(*measured, strict=True))
    share, seconds = sent / len(new), encode_s + decode_s
    print(f"{len(new) / 2**20:.0f} MiB, as a difference {share:.1%} of that")
    print(f"encodes {_rate(new, encode_s):.0f} MB/s, decodes {_rate(new, decode_s):.0f} MB/s")
    overlapped = _rate(new, max(encode_s, decode_s))
    in_turn = (1 - share) * _rate(new, seconds)
    print(f"sooner on links below {overlapped:.0f} MB/s, one after the other {in_turn:.0f} MB/s")


def _measure(old: bytes, new: bytes) -> tuple[int, float, float]:
    """Bytes sent, seconds of encoding and of decoding."""
    num_sent, encode_s, decode_s = 0, 0.0, 0.0
    size = suitable_shard_bytes(len(new))
    for start in range(0, len(new), size):
        shard, before = new[start : start + size], old[start : start + size]
        began_s = time.perf_counter()
        sent = encode(shard, before)
        encoded_s = time.perf_counter()
        right = decode(sent, before) == shard
        decode_s += time.perf_counter() - encoded_s
        encode_s += encoded_s - began_s
        num_sent += len(sent)
        assert right, "a difference must give the version back"
    return num_sent, encode_s, decode_s


def _rate(data: bytes, seconds: float) -> float:
    """Megabytes a second."""
    return len(data) / 1e6 / seconds


if __name__ == "__main__":
    main()
