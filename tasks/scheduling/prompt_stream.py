"""The order in which a run asks its dataset: an endless stream of prompts, epoch after epoch, each in an order of its own.

The stream's whole state is the number of prompts drawn so far, so resuming it is exact. Rows are named by epoch and row, never
by their text: a dataset may hold the same question twice. Leaves out what a row contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tasks.scheduling.events import PromptRef


@lru_cache(maxsize=4)
def _permutation(num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    order = np.random.default_rng(np.random.SeedSequence((seed, epoch))).permutation(num_rows)
    order.setflags(write=False)
    return order


def draw_prompts(domains: Sequence[str], seed: int, num_drawn: int, num_prompts: int) -> tuple[PromptRef, ...]:
    """The next prompts after the first num_drawn; `domains` has the domain of every row of the dataset, seed is >= 0."""
    if not domains:
        raise ValueError("a dataset must have at least 1 row, got 0; check the task's size and filters")
    return tuple(_prompt_at(domains, seed, place) for place in range(num_drawn, num_drawn + num_prompts))


def _prompt_at(domains: Sequence[str], seed: int, place: int) -> PromptRef:
    epoch, position = divmod(place, len(domains))
    row = int(_permutation(len(domains), seed, epoch)[position])
    return PromptRef(prompt_id=f"{epoch}/{row}", domain=domains[row])
