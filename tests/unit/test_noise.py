"""The seeds of rows: the SplitMix64 sequence of each response's seed, by position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.vllm.worker_patches import row_seeds

SEEDS = st.integers(0, 2**63 - 1)
POSITIONS = st.integers(0, 2**20)


def seeds_of(rows: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    seeds, positions = zip(*rows, strict=True)
    return row_seeds(np.array(seeds, np.uint64), np.array(positions, np.uint64))


def test_the_sequence_of_a_seed_is_that_of_splitmix64() -> None:
    """The first numbers of the reference implementation for seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = seeds_of([(1234567, position) for position in range(3)])
    assert found.view(np.uint64).tolist() == expected


@given(rows=st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=20), place=st.data())
def test_a_row_does_not_depend_on_the_rows_beside_it(
    rows: list[tuple[int, int]],
    place: st.DataObject,
) -> None:
    order = place.draw(st.permutations(range(len(rows))))
    shuffled = seeds_of([rows[row] for row in order])
    assert shuffled.tolist() == seeds_of(rows)[list(order)].tolist()
    assert [int(seeds_of([row])[0]) for row in rows] == seeds_of(rows).tolist()


def test_rows_of_neighbouring_seeds_and_positions_share_no_seed_and_no_bit_is_favoured() -> None:
    found = seeds_of([(seed, position) for seed in range(200) for position in range(200)])
    assert len(set(found.tolist())) == 40_000
    bits = np.unpackbits(found.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.01  # four standard deviations
