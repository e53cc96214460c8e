"""Questions of reasoning-gym (the optional extra `tasks`), only from data sets whose scorers are
safe to run on a model's text. A row's gold only names its entry (data set, seed, position, config),
which the reward generates again in its worker process."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Dataset, Message, Row, belongs_to_heldout, question_row
from artifacts.urls import Arguments

# Of the others, nine evaluate the answer as code or never return, and more reward junk.
ALLOWED_DATASETS = frozenset(
    {
        "aiw", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "count_bits", "count_primes",
        "family_relationships",
        "gcd", "gsm_symbolic", "lcm", "leg_counting", "letter_counting", "maze", "number_sequence",
        "number_sorting",
        "products", "simple_equations", "sokoban", "spell_backward", "word_sorting",
    }
)  # fmt: skip
ANSWER_RULE = (
    'Think step by step if you need to, and end with a line "Answer: ..." that holds the answer'
    " only."
)
# entries searched per wanted row, before a data set counts as too small for a held-out side
_DRAWS_PER_ROW = 40


class ReasoningGymTaskConfig(FrozenConfig):
    """Generated puzzles, one domain per data set."""

    kind: Literal["reasoning_gym"] = Field(
        "reasoning_gym", description="Chooses generated puzzles of reasoning-gym."
    )
    datasets: Mapping[str, Arguments] = Field(
        ...,
        min_length=1,
        description="The data sets by name, each with the arguments it is created with.",
    )
    num_prompts: int = Field(4096, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(
        256, ge=0, description="Questions to evaluate on; none of them is trained."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in sorted(set(self.datasets) - ALLOWED_DATASETS):
            raise ValueError(
                "a reasoning_gym data set must be one whose scorer is safe on model text, got"
                f" {name!r}; choose among {', '.join(sorted(ALLOWED_DATASETS))}"
            )
        return self

    def load(self, seed: int) -> Dataset:
        """Draw equally many questions from every data set, and shuffle them. Raises ValueError if
        the extra `tasks` is not installed or a data set has too few questions."""
        sides: list[tuple[Row, ...]] = []
        for is_heldout, count in ((False, self.num_prompts), (True, self.heldout_prompts)):
            names = sorted(self.datasets)
            shares = {
                name: count // len(names) + (place < count % len(names))
                for place, name in enumerate(names)
            }
            rows = [
                row
                for name in names
                for row in _draw(name, self.datasets[name], seed, shares[name], is_heldout)
            ]
            random.Random(f"{seed}/reasoning_gym/{is_heldout}").shuffle(rows)
            sides.append(tuple(rows))
        return Dataset(name="reasoning_gym", rows=sides[0], heldout=sides[1])


def _draw(
    name: str, arguments: Mapping[str, Any], seed: int, count: int, is_heldout: bool
) -> list[Row]:
    if not count:
        return []
    entries = _create(name, arguments, seed, size=_DRAWS_PER_ROW * count + 200)
    rows: list[Row] = []
    for index in range(len(entries)):
        question = str(entries[index]["question"])
        if belongs_to_heldout(question) == is_heldout:
            gold = {"dataset": name, "seed": seed, "index": index, "config": dict(arguments)}
            system = Message(role="system", content=ANSWER_RULE)
            rows.append(question_row(name, question, json.dumps(gold, sort_keys=True), (system,)))
        if len(rows) == count:
            return rows
    raise ValueError(
        f"reasoning_gym data set {name} must know {count}"
        f" {'held-out' if is_heldout else 'training'} questions, found {len(rows)} among"
        f" {len(entries)} entries; lower num_prompts or heldout_prompts, or make its questions more"
        " varied"
    )


def _create(
    name: str, arguments: Mapping[str, Any], seed: int, size: int
) -> Any:  # Any: reasoning-gym is untyped
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError(
            "task reasoning_gym needs the package reasoning-gym, which is not installed; pip"
            " install -e '.[tasks]'"
        ) from error
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"the arguments of reasoning_gym data set {name} must suit it, got {dict(arguments)}"
            f" ({error}); correct them"
        ) from error
