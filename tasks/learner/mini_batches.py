"""The groups of a step in mini-batches, each of which makes an optimizer update.

    groups ─▶ order by step and prompt ─▶ mini-batch 0, 1, 2, 0, 1, 2, ... (whole groups)

Advantages are made before: a group is whole in its mini-batch, and what an advantage needs of the
whole step comes with it. Leaves out which rank trains what of a mini-batch (split).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from artifacts.records import Group


def mini_batches(groups: Sequence[Group], step: int, number: int) -> tuple[tuple[Group, ...], ...]:
    """So many mini-batches whose sizes differ by one group at most; some are empty where there are
    fewer groups.

    A function of the step and of its groups alone, in whatever order they come: it depends on the
    run's seed through the prompts that were drawn, and not on the number of ranks. The order is
    that of a hash, so that neighbours of the data set fall apart, differently in every step.
    """
    ordered = sorted(groups, key=lambda group: _place(step, group.prompt.prompt_id))
    return tuple(tuple(ordered[first::number]) for first in range(number))


def _place(step: int, prompt_id: str) -> bytes:
    return hashlib.sha256(f"{step}:{prompt_id}".encode()).digest()
