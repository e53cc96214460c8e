"""Seeds by name: every random choice of a run derives from its one seed, and from nothing else."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: object) -> int:
    """A seed of 63 bits for the choice of this name, for example derive_seed(0, "sampling", 7,
    "engine-0")."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
