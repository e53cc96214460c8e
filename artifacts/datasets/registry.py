"""The registry of tasks: the union of all sources of questions, episodes of an environment among
them, and mixtures and curricula of tasks.

To add a source, write a file with its configuration, whose `load(seed)` returns a Dataset, and add
one line to the union. A dataset is a function of configuration and seed alone, so any process can
make its own copy, and tasks pass row numbers.

    mixture      rows of several tasks, interleaved by weight; a question that one part holds out
                 is trained by none
    curriculum   rows of stage 1, stage 2, ..., the task, asked in this order. A policy trained
                 only on questions of one step becomes certain that one step is enough
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, MutableSet, Sequence, Set
from itertools import cycle
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.custom_part import CustomPart
from artifacts.datasets.chain_sum import ChainSumConfig
from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.datasets.humaneval_rows import HumanEvalConfig
from artifacts.datasets.published_rows import Published
from artifacts.datasets.reasoning_gym_rows import ReasoningGymTaskConfig
from artifacts.datasets.rows import Dataset, Row
from artifacts.datasets.shapes import ShapesConfig
from artifacts.datasets.tiny_mix import TinyMixConfig
from artifacts.datasets.tinycode import TinycodeConfig

LARGEST_SEED = 2**31


class SeedsConfig(FrozenConfig):
    """Episodes of an environment."""

    kind: Literal["seeds"] = Field(
        "seeds", description="Chooses episodes of an environment, a seed each."
    )
    domain: str = Field(
        ...,
        min_length=1,
        description="Domain whose episodes are played: a name among `environments`.",
    )
    num_prompts: int = Field(4096, ge=1, le=2**20, description="Episodes to train on.")
    heldout_prompts: int = Field(
        256, ge=0, le=2**20, description="Episodes to evaluate on; none of them is trained."
    )

    def load(self, seed: int) -> Dataset:
        """Draw the episodes' seeds: even ones to train on, odd ones held out, so that no seed is on
        both sides. The held-out ones do not depend on `seed`: they are the same for every run."""

        def side(key: str, count: int, parity: int) -> tuple[Row, ...]:
            rng, seeds = random.Random(f"{key}/{self.domain}"), dict[int, None]()
            while len(seeds) < count:
                seeds[2 * rng.randrange(LARGEST_SEED // 2) + parity] = None
            return tuple(
                Row(
                    domain=self.domain,
                    messages=(),
                    gold=str(episode),
                    text=f"{self.domain}, episode {episode}",
                )
                for episode in seeds
            )

        return Dataset(
            name="seeds",
            rows=side(f"{seed}/seeds/rows", self.num_prompts, 0),
            heldout=side("seeds/heldout", self.heldout_prompts, 1),
        )


class CustomTask(CustomPart):
    """The questions of a class of the user's, whose method `load(seed)` returns a `Dataset`."""

    check: ClassVar[str] = "dataset"
    methods: ClassVar[tuple[str, ...]] = ("load",)
    kind: Literal["custom"] = Field("custom", description="Chooses questions of your own class.")

    def load(self, seed: int) -> Dataset:
        """Load the rows. Raises ValueError if the user's class fails or returns something else."""
        part = self.made()
        with self.calling("load"):
            found = part.load(seed)
        if not isinstance(found, Dataset):
            raise ValueError(
                f"load(seed) of {self.path} must return a Dataset (artifacts.datasets.rows), got"
                f" {type(found).__name__}; make one of your rows"
            )
        return found


SingleTask = Annotated[
    TinyMixConfig  # sums, letters and stories for a small model
    | TinycodeConfig  # small Python functions to write
    | ChainSumConfig  # sums of characters for the tiny model
    | ReasoningGymTaskConfig  # generators of reasoning-gym
    | FilesConfig  # Parquet, CSV or JSON lines of the user's
    | HubRowsConfig  # a data set of the Hugging Face hub
    | Published  # data sets of the papers, by name
    | HumanEvalConfig  # HumanEval, evaluated only
    | ShapesConfig  # drawn pictures, to be counted and measured
    | SeedsConfig  # episodes of an environment
    | CustomTask,  # a class of the user's
    Field(discriminator="kind"),
]


class PartConfig(FrozenConfig):
    """One task of a mixture, with its weights."""

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


class MixtureConfig(FrozenConfig):
    """A mixture of tasks."""

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
        """Interleave the parts' rows: each row's part is drawn by weight, and a part's rows come in
        the part's own order."""
        parts = [part.task.load(seed) for part in self.parts]
        heldout = tuple(
            _interleave(
                [part.heldout for part in parts],
                [part.heldout_weight for part in self.parts],
                self.heldout_prompts,
                random.Random(f"{seed}/mixture/heldout"),
            )
        )
        passed = set[tuple[int, int]]()
        rows = tuple(
            _interleave(
                [part.rows for part in parts],
                [part.weight for part in self.parts],
                self.num_prompts,
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
    heldout: Set[str] = frozenset(),
    passed: MutableSet[tuple[int, int]] = set(),  # noqa: B006  # unchanged without heldout ones
) -> Iterator[Row]:
    """Yield num_rows rows of the parts. Rows whose question is in `heldout` are skipped; the set
    `passed` collects their (part, row number). A part that runs out begins again. Raises ValueError
    if a part with a weight > 0 has no rows but skipped ones."""
    empty = [
        number
        for number, (rows, weight) in enumerate(zip(parts, weights, strict=True))
        if weight and all(row.identity in heldout for row in rows)
    ]
    if empty and num_rows:
        raise ValueError(
            f"every part of a mixture with a weight needs questions, part {empty[0]} has none on"
            " one side; set its weight to 0"
        )

    def cycled(part: int) -> Iterator[Row]:
        rows = parts[part]
        for place in cycle(range(len(rows))):
            if heldout and rows[place].identity in heldout:
                passed.add((part, place))
            else:
                yield rows[place]

    endless = [cycled(part) for part in range(len(parts))]
    return (next(rng.choices(endless, weights=weights)[0]) for _ in range(num_rows))


class StageConfig(FrozenConfig):
    """A stage of questions before those of the task itself."""

    task: SingleTask = Field(..., description="Where the stage's questions come from.")
    num_prompts: int = Field(
        ..., ge=1, description="How many of its questions are asked before the next stage begins."
    )


class CurriculumConfig(FrozenConfig):
    """Stages of questions, and the task that is asked after them."""

    kind: Literal["curriculum"] = Field(
        "curriculum", description="Chooses stages of easier questions before a task's own."
    )
    stages: tuple[StageConfig, ...] = Field(
        ..., min_length=1, description="What is asked first, one stage after the other."
    )
    task: SingleTask = Field(
        ..., description="The task to learn: asked after the stages, and the one evaluated."
    )

    def load(self, seed: int) -> Dataset:
        """Load the rows of the stages and then of the task, in the order of every epoch. Raises
        ValueError for a stage with too few questions, or with one that the task holds out."""
        learned = self.task.load(seed)
        evaluated = {row.identity for row in learned.heldout}
        rows, left_out = list[Row](), Counter(learned.left_out)
        for number, stage in enumerate(self.stages):
            # of its own: else stages that differ only in a size would ask similar questions
            own_seed = random.Random(f"{seed}/curriculum/{number}").getrandbits(31)
            loaded = stage.task.load(own_seed)
            found = loaded.rows[: stage.num_prompts]
            if len(found) < stage.num_prompts:
                raise ValueError(
                    f"task.stages[{number}].num_prompts must be <= the stage's questions"
                    f" ({len(found)}), got {stage.num_prompts}; lower it"
                )
            for row in found:
                if row.identity in evaluated:
                    raise ValueError(
                        f"task.stages[{number}] must not train what the task holds out, got"
                        f" {row.text!r}; take another split or filter"
                    )
            rows += found
            left_out.update(loaded.left_out)
        return Dataset(
            name="curriculum",
            rows=(*rows, *learned.rows),
            heldout=learned.heldout,
            in_order=True,
            left_out=left_out,
        )


TaskConfig = Annotated[SingleTask | MixtureConfig | CurriculumConfig, Field(discriminator="kind")]


def load_dataset(config: TaskConfig, seed: int) -> Dataset:
    """Load the rows of a task, the same in every process. Raises ValueError for a source without
    usable rows."""
    return config.load(seed)
