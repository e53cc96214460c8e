"""The order in which a run draws prompts, and the seeds of all its random choices.

Prompts form an endless stream of epochs: each has a random order of its own, or all have the order
of the rows. The stream's whole state is the number of prompts drawn so far, so resuming it is
exact. A prompt's id consists of epoch and row, never of the text: a dataset may hold the same
question twice. Leaves out what a row contains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, islice

import numpy as np
import numpy.typing as npt

from artifacts.prompt_ids import asked_of
from tasks.scheduling.events import PromptRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """The adapters that answer a row: all of them, each at a place of its own in the stream, or
    that of the row's domain. In a run without a sweep one without a name."""

    names: tuple[str, ...] = ("",)
    by_domain: Mapping[str, str] = field(default_factory=dict)  # empty: all answer all

    @property
    def times(self) -> int:
        """How often each row is asked in an epoch."""
        return 1 if self.by_domain else len(self.names)

    def ref(self, prompt_id: str, domain: str, place: int) -> PromptRef:
        """The prompt of a row at a place. Each adapter has quotas of its own."""
        name = self.by_domain[domain] if self.by_domain else self.names[place % self.times]
        return PromptRef(prompt_id=asked_of(prompt_id, name), domain=asked_of(domain, name))


NO_SWEEP = Answering()


@lru_cache(maxsize=4)
def _permutation(num_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    order = np.random.default_rng(np.random.SeedSequence((seed, epoch))).permutation(num_rows)
    order.setflags(write=False)
    return order


def draw_prompts(
    domains: Sequence[str],
    seed: int | None,
    num_drawn: int,
    num_prompts: int,
    unfit: Collection[int] = (),
    answering: Answering = NO_SWEEP,
) -> tuple[PromptRef, ...]:
    """The next num_prompts prompts after the first num_drawn places of the stream. domains: the
    domain of every row of the dataset. seed: >= 0, or None if rows are asked in their own order.

    Unfit rows keep their places, which are passed over.
    """
    num_rows, times = len(domains), answering.times
    return tuple(
        answering.ref(f"{place // times // num_rows}/{row}", domains[row], place)
        for place in draw_places(num_rows, seed, num_drawn, num_prompts, unfit, times)
        for row in (row_at(num_rows, seed, place, times),)
    )


def draw_places(
    num_rows: int,
    seed: int | None,
    num_drawn: int,
    num_prompts: int,
    unfit: Collection[int] = (),
    times: int = 1,
) -> tuple[int, ...]:
    """The places in the stream of the prompts that `draw_prompts` returns. times: how often each
    row is asked, one place after the other. Raises ValueError if all rows are unfit."""
    num_fit = num_rows - len(unfit)
    if num_fit < 1:
        raise ValueError(
            f"a dataset must have at least 1 row to ask, got {num_fit}; check the task's filters"
        )
    fit = (place for place in count(num_drawn) if row_at(num_rows, seed, place, times) not in unfit)
    return tuple(islice(fit, num_prompts))


def row_at(num_rows: int, seed: int | None, place: int, times: int = 1) -> int:
    """The dataset row at a place of the stream."""
    epoch, position = divmod(place // times, num_rows)
    return position if seed is None else int(_permutation(num_rows, seed, epoch)[position])


def derive_seed(seed: int, *names: object) -> int:
    """A seed of 63 bits for the random choice with these names, for example derive_seed(0,
    "sampling", 7, "engine-0")."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
