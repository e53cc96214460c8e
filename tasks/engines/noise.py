"""Noise that belongs to a response: a function of its seed and the token's position alone.

    seed of the response ──┐
                           ├──▶ row_seeds ──▶ Gumbel noise of every token ──▶ argmax
    position of the token ─┘

A position is the index of the drawn token in the whole sequence, prompt included. It is counted,
not remembered, so that a response that is computed again (in another batch, after a preemption, on
another engine, from its partial tokens) meets the noise that it would have met. For one seed the
row seeds are the SplitMix64 sequence (Steele, Lea and Flood 2014) that starts there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def row_seeds(
    seeds: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int64]:
    """The seed of the next token's noise for each row of a batch: 64 bits, as a signed number."""
    mixed = seeds + (positions + np.uint64(1)) * _STEP  # arrays of uint64 wrap around
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_FACTOR
    drawn: npt.NDArray[np.int64] = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return drawn
