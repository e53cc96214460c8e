"""What a dataset consists of, wherever its questions come from: rows to train on, and held-out rows
that share no question.

Leaves out the sources (tiny_mix, chain_sum, file_rows, hub_rows, seeds, ...) and the choice
among them (choice).
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

Role = Literal["system", "user", "assistant"]

HELDOUT_SHARE = 1 / 8  # share of a generator's questions that are never trained
_MAX_DRAWS_PER_ROW = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat."""

    role: Role  # who speaks
    content: str  # what is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question with its answer, not yet tokenised."""

    domain: str  # reward domain and quota key
    messages: tuple[Message, ...]  # the chat up to the question, examples too; none of an episode
    gold: str  # what the reward compares with
    text: str  # the question as a person would read it (the last user turn)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The rows of a run. A row's index is its identity; equal questions may come twice, but never
    on both sides."""

    name: str  # the kind of its source, for file names and tags
    rows: Sequence[Row]  # to train on
    heldout: Sequence[Row]  # to evaluate on
    in_order: bool = False  # whether the rows are asked as they stand, or shuffled in every epoch

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domain of every row, in the order of the rows."""
        return tuple(row.domain for row in self.rows)

    def order_seed(self, seed: int) -> int | None:
        """What the order in which a run of this seed asks its rows depends on: the seed, or
        nothing."""
        return None if self.in_order else seed

    @cached_property
    def digest(self) -> str:
        """blake2b over all rows: equal digests mean equal questions in equal order."""
        total = hashlib.blake2b(digest_size=16)
        for side, rows in (("rows", self.rows), ("heldout", self.heldout)):
            for row in rows:
                total.update(f"{side} {json.dumps(asdict(row), sort_keys=True)}\n".encode())
        return total.hexdigest()


def question_row(domain: str, question: str, gold: str, before: tuple[Message, ...] = ()) -> Row:
    """A row that asks `question` after the turns `before`."""
    return Row(
        domain=domain,
        messages=(*before, Message(role="user", content=question)),
        gold=gold,
        text=question,
    )


def generate(
    name: str,
    draw: Callable[[random.Random], Row],
    seed: int,
    num_prompts: int,
    heldout_prompts: int,
) -> Dataset:
    """A dataset drawn row by row. A question's hash says on which side it belongs, so the split
    depends on no count or seed; what is held out is the same for every seed, so that the scores of
    seeds can be compared.

    Both sides follow the source's own mix, so a frequent question may come twice on either. Raises
    ValueError when a side finds no question, because the source knows too few.
    """

    def side(key: str, count: int, is_heldout: bool) -> tuple[Row, ...]:
        rng = random.Random(key)
        return tuple(_draw_one(name, draw, rng, is_heldout) for _ in range(count))

    return Dataset(
        name=name,
        rows=side(f"{seed}/{name}/rows", num_prompts, is_heldout=False),
        heldout=side(f"{name}/heldout", heldout_prompts, is_heldout=True),
    )


def _draw_one(
    name: str, draw: Callable[[random.Random], Row], rng: random.Random, is_heldout: bool
) -> Row:
    for _ in range(_MAX_DRAWS_PER_ROW):
        row = draw(rng)
        if belongs_to_heldout(row.text) == is_heldout:
            return row
    raise ValueError(
        f"task {name} must know questions for both sides, got no"
        f" {'held-out' if is_heldout else 'training'} question in {_MAX_DRAWS_PER_ROW} draws; raise"
        " its sizes or ask for fewer"
    )


def belongs_to_heldout(question: str) -> bool:
    """Whether a generated question is kept for evaluation: one in eight, by its hash alone."""
    word = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big")
    return word < HELDOUT_SHARE * 2**64


def pareto_size(rng: random.Random, smallest: int, largest: int, alpha: float) -> int:
    """A size with a long tail: Pareto with exponent alpha from `smallest`, rounded down, cut at
    `largest`."""
    drawn = 1.0 - rng.random()
    if -math.log(drawn) >= alpha * math.log(largest / smallest):
        return largest  # the power of a small exponent may be beyond any float
    return int(smallest * drawn ** (-1.0 / alpha))
