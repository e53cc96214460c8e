"""tiny-mix: sums, letter counts and short stories that a 135M instruction model gets right one time
in five. Sizes are Pareto-drawn and worked examples show one line per step, so that response lengths
are long-tailed for a reason that training does not remove."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Dataset, Row, generate, pareto_size, question_row, shots
from artifacts.fixed_fields import Fixed, Profile, with_profile

WORDS = (
    "book", "sun", "orange", "bag", "small", "tree", "water", "green", "table", "apple", "river",
    "stone", "music", "window",
    "yellow", "garden", "paper", "cloud", "summer", "bottle", "kitchen", "button", "letter",
    "banana", "street", "mirror",
    "pencil", "coffee", "carrot", "bridge", "silver", "pillow", "rabbit",
)  # fmt: skip
NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo")
THINGS = ("pens", "apples", "coins", "books", "cards", "shells", "stamps", "marbles")


class FamilyConfig(FrozenConfig):
    """One family of questions in the mix."""

    weight: float = Field(
        1.0,
        ge=0,
        description="Share of the family's questions in the mix, relative to the other weights.",
    )
    max_size: int = Field(
        ..., ge=1, description="Largest size of a question: terms, words or steps."
    )
    alpha: float = Field(
        ..., gt=0, description="Pareto exponent of the sizes; smaller means more long questions."
    )


PROFILES: Mapping[str, Mapping[str, object]] = {
    "usual": {},
    # Mostly questions of several steps: a policy that meets mostly questions of one step learns
    # that one step is enough.
    "first_lesson": {
        "add": {"max_size": 6, "alpha": 0.6},
        "letters": {"max_size": 4, "alpha": 1.2, "weight": 0.5},
        "story": {"max_size": 4, "alpha": 0.5, "weight": 1.5},
    },
    "second_lesson": {
        "add": {"max_size": 9, "alpha": 0.6},
        "letters": {"max_size": 7, "alpha": 1.2, "weight": 0.7},
        "story": {"max_size": 6, "alpha": 0.5, "weight": 1.5},
    },
}


class TinyMixConfig(FrozenConfig):
    """Three families of few-shot questions for a 135M model."""

    kind: Literal["tiny_mix"] = Field(
        "tiny_mix", description="Chooses generated sums, letter counts and stories."
    )
    num_prompts: int = Field(4096, ge=1, description="Questions to train on.")
    heldout_prompts: int = Field(
        256, ge=0, description="Questions to evaluate on; none of them is trained."
    )
    worked: bool = Field(
        False,
        description=(
            "The golds of sums and stories to train on have the lines of their working before the"
            " answer, for the reward 'worked_answer'. Held-out ones are answers alone."
        ),
    )
    profile: Profile = Field(
        "usual",
        description=(
            "Weights and sizes of the families: usual, first_lesson, second_lesson, a file of JSON"
            " or YAML, or the numbers themselves (add, letters, story)."
        ),
    )
    add: Fixed[FamilyConfig] = FamilyConfig(max_size=12, alpha=1.3)  # sums of terms from 1 to 9
    letters: Fixed[FamilyConfig] = FamilyConfig(max_size=7, alpha=1.2)  # a letter's count in words
    story: Fixed[FamilyConfig] = FamilyConfig(max_size=8, alpha=1.2)  # gains and losses

    @model_validator(mode="before")
    @classmethod
    def _take_profile(cls, values: Any) -> Any:  # Any: whatever is validated
        return with_profile(values, PROFILES, "usual")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.add.weight + self.letters.weight + self.story.weight <= 0:
            raise ValueError(
                "at least one family of tiny_mix must have a weight > 0, got 0 for all three;"
                " raise one"
            )
        if self.add.max_size < 2:
            raise ValueError(
                f"add.max_size must be >= 2 (a sum has two terms), got {self.add.max_size};"
                " raise it"
            )
        return self

    def load(self, seed: int) -> Dataset:
        """Generate the questions for this configuration and seed."""
        families = ((_add_row, self.add), (_letters_row, self.letters), (_story_row, self.story))
        weights = [family.weight for _, family in families]

        def draw(rng: random.Random) -> Row:
            make, family = rng.choices(families, weights=weights)[0]
            while (row := make(rng, family)).text in _SHOWN:
                pass
            return row

        drawn = generate("tiny_mix", draw, seed, self.num_prompts, self.heldout_prompts)
        rows = drawn.rows if self.worked else _answers_alone(drawn.rows)
        return replace(drawn, rows=rows, heldout=_answers_alone(drawn.heldout))


def _answers_alone(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Reduce the rows' golds to their answers, without the lines of working."""
    return tuple(replace(row, gold=row.gold.rpartition("\n")[2]) for row in rows)


def _add_row(rng: random.Random, family: FamilyConfig) -> Row:
    terms = [rng.randint(1, 9) for _ in range(pareto_size(rng, 2, family.max_size, family.alpha))]
    return question_row("add", _add_question(terms), _worked(terms[0], terms[1:]), _ADD_SHOTS)


def _letters_row(rng: random.Random, family: FamilyConfig) -> Row:
    words = [rng.choice(WORDS) for _ in range(pareto_size(rng, 1, family.max_size, family.alpha))]
    phrase = " ".join(words)
    letter = rng.choice(sorted(set(phrase) - {" "}))
    return question_row(
        "letters", _letters_question(letter, phrase), str(phrase.count(letter)), _LETTERS_SHOTS
    )


def _story_row(rng: random.Random, family: FamilyConfig) -> Row:
    start = total = rng.randint(1, 9)
    changes: list[int] = []
    for _ in range(pareto_size(rng, 1, family.max_size, family.alpha)):
        change = (
            -rng.randint(1, min(9, total)) if total and rng.random() < 0.4 else rng.randint(1, 9)
        )
        changes.append(change)
        total += change
    question = _story_question(rng.choice(NAMES), rng.choice(THINGS), start, changes)
    return question_row("story", question, _worked(start, changes), _STORY_SHOTS)


def _add_question(terms: Sequence[int]) -> str:
    return f"What is {' + '.join(map(str, terms))}?"


def _letters_question(letter: str, phrase: str) -> str:
    return f'How many times does the letter "{letter}" appear in "{phrase}"?'


def _story_question(name: str, things: str, start: int, changes: Sequence[int]) -> str:
    events = " ".join(
        f"{name} {'gets' if change > 0 else 'gives away'} {abs(change)}{' more' * (change > 0)}."
        for change in changes
    )
    return f"{name} has {start} {things}. {events} How many {things} does {name} have now?"


def _worked(start: int, changes: Sequence[int], before_answer: str = "") -> str:
    """The working of a sum: one line per step, then the answer."""
    lines, total = [], start
    for change in changes:
        lines.append(f"{total} {'+' if change > 0 else '-'} {abs(change)} = {total + change}")
        total += change
    return "\n".join([*lines, f"{before_answer}{total}"])


_ADD_SHOTS = shots(
    *(
        (_add_question(t), _worked(t[0], t[1:], "Answer: "))
        for t in ((3, 5), (2, 4, 1, 3), (9, 4), (6, 1, 2))
    )
)
_LETTERS_SHOTS = shots(
    *(
        (
            _letters_question(letter, phrase),
            f"{'-'.join(phrase.replace(' ', '_'))}\nAnswer: {phrase.count(letter)}",
        )
        for letter, phrase in (("o", "book"), ("e", "sun"), ("a", "a small orange bag"))
    )
)
_STORIES: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("Ana", "pens", 4, (3,)),
    ("Ben", "coins", 5, (2, -4, 6)),
    ("Cleo", "books", 8, (-3, 1)),
    ("Dan", "shells", 7, (-2,)),
)
_STORY_SHOTS = shots(
    *((_story_question(*story), _worked(story[2], story[3], "Answer: ")) for story in _STORIES)
)
_SHOWN = {
    message.content for message in (*_ADD_SHOTS, *_LETTERS_SHOTS, *_STORY_SHOTS)
}  # never asked: the prompt answers them
