"""Random numbers by name: the same seed and names give the same number in every process and order,
in about two microseconds each.

`tasks.scheduling.prompt_stream` derives seeds by name for generators; making one generator for each
of a million responses would take a minute.
"""

from __future__ import annotations

import hashlib
from statistics import NormalDist

_NORMAL = NormalDist()


def uniform(seed: int, *names: object) -> float:
    """Draw a number between 0 and 1, both excluded."""
    text = "/".join(map(str, (seed, *names)))
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def normal(seed: int, *names: object) -> float:
    """Draw a number of the standard normal law."""
    return _NORMAL.inv_cdf(uniform(seed, *names))


def alike(shared: float, own: float, correlation: float) -> float:
    """Mix two standard normals so that results with the same `shared` have this correlation."""
    return float(correlation**0.5 * shared + (1 - correlation) ** 0.5 * own)


def normal_score(share: float) -> float:
    """Returns the number below which this share of the standard normal law lies."""
    return _NORMAL.inv_cdf(share)
