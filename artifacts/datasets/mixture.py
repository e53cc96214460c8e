"""Several tasks in one run, by sampling ratio: their rows are interleaved, and each keeps its
domains, rewards and metrics.

A part of weight 0 is evaluated only: its held-out questions are asked, none of its rows is trained.
What is held out is trained by no part, as several may hold the same questions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, MutableSet, Sequence, Set
from itertools import count
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.datasets.registry import SingleTask
from artifacts.datasets.rows import Dataset, Row


class PartConfig(BaseModel):
    """One task of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SingleTask = Field(..., description="Where the part's questions come from.")
    weight: float = Field(
        1.0,
        ge=0,
        description=(
            "Share of the trained questions, relative to the other parts; 0: evaluated only."
        ),
    )
    heldout_weight: float = Field(
        1.0, ge=0, description="Share of the held-out questions, relative to the other parts."
    )


class MixtureConfig(BaseModel):
    """A mixture of tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["mixture"] = Field("mixture", description="Chooses a mixture of tasks.")
    parts: tuple[PartConfig, ...] = Field(
        ..., min_length=1, description="The tasks and their shares."
    )
    num_prompts: int = Field(
        4096, ge=1, description="Questions to train on, those of all parts together."
    )
    heldout_prompts: int = Field(
        128, ge=0, description="Questions to evaluate on, those of all parts together."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("weight", "heldout_weight"):
            if not any(getattr(part, name) for part in self.parts):
                raise ValueError(
                    f"at least one part of a mixture must have a {name} > 0, got 0 for all;"
                    " raise one"
                )
        return self

    def load(self, seed: int) -> Dataset:
        return mixture(self, seed)


def mixture(config: MixtureConfig, seed: int) -> Dataset:
    """Rows of the parts, each drawn by its weight and taken in the part's own order."""
    parts = [part.task.load(seed) for part in config.parts]
    heldout = tuple(
        _interleave(
            [part.heldout for part in parts],
            [part.heldout_weight for part in config.parts],
            config.heldout_prompts,
            random.Random(f"{seed}/mixture/heldout"),
        )
    )
    passed = set[tuple[int, int]]()
    rows = tuple(
        _interleave(
            [part.rows for part in parts],
            [part.weight for part in config.parts],
            config.num_prompts,
            random.Random(f"{seed}/mixture/rows"),
            {row.identity for row in heldout},
            passed,
        )
    )
    left_out = sum((Counter(part.left_out) for part in parts), Counter(held_out=len(passed)))
    return Dataset(name="mixture", rows=rows, heldout=heldout, left_out=left_out)


def _interleave(
    parts: Sequence[Sequence[Row]],
    weights: Sequence[float],
    num_rows: int,
    rng: random.Random,
    asked: Set[str] = frozenset(),
    passed: MutableSet[tuple[int, int]] = set(),  # noqa: B006  # never changed where none is asked
) -> Iterator[Row]:
    """Rows of the parts but those whose question is `asked`, of which `passed` gets part and place.

    ValueError if a part with a weight has no others; a part that runs out begins again.
    """
    empty = [
        number
        for number, (rows, weight) in enumerate(zip(parts, weights, strict=True))
        if weight and all(row.identity in asked for row in rows)
    ]
    if empty and num_rows:
        raise ValueError(
            f"every part of a mixture with a weight needs questions, part {empty[0]} has none on"
            " one side; set its weight to 0"
        )
    endless = [_again_and_again(rows, asked, passed, part) for part, rows in enumerate(parts)]
    return (next(rng.choices(endless, weights=weights)[0]) for _ in range(num_rows))


def _again_and_again(
    rows: Sequence[Row], asked: Set[str], passed: MutableSet[tuple[int, int]], part: int
) -> Iterator[Row]:
    """The other rows in their order, from the first again after the last."""
    for number in count():
        place = number % len(rows)
        if asked and rows[place].identity in asked:
            passed.add((part, place))
        else:
            yield rows[place]
