"""A curriculum: easier questions first, in stages, then those of the task itself.

    stage 1's rows, stage 2's rows, ..., the task's rows ─▶ asked in this order
    the task's held-out rows                             ─▶ evaluated

What is asked of a policy early decides what it can learn later: a policy that only ever met
questions of one step becomes certain that one step is enough. Leaves out how hard a stage is, which
its task says.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.datasets.registry import SingleTask
from artifacts.datasets.rows import Dataset, Row


class StageConfig(BaseModel):
    """What is asked before the task itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SingleTask = Field(..., description="Where the stage's questions come from.")
    num_prompts: int = Field(
        ..., ge=1, description="How many of its questions are asked before the next stage begins."
    )


class CurriculumConfig(BaseModel):
    """Stages, and the task that they lead to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        return curriculum(self, seed)


def curriculum(config: CurriculumConfig, seed: int) -> Dataset:
    """The rows of stages and task, in the order in which they are asked, in every epoch.

    Raises ValueError for a stage that is asked more questions than it has, or one of the held-out
    ones.
    """
    learned = config.task.load(seed)
    asked_at_the_end = {row.identity for row in learned.heldout}
    rows, left_out = list[Row](), Counter(learned.left_out)
    for number, stage in enumerate(config.stages):
        loaded = stage.task.load(_stage_seed(seed, number))
        found = loaded.rows[: stage.num_prompts]
        if len(found) < stage.num_prompts:
            raise ValueError(
                f"task.stages[{number}].num_prompts must be <= the stage's questions"
                f" ({len(found)}), got {stage.num_prompts}; lower it"
            )
        for row in found:
            if row.identity in asked_at_the_end:
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


def _stage_seed(seed: int, number: int) -> int:
    """One of its own: stages that differ by a size alone would ask alike questions."""
    return random.Random(f"{seed}/curriculum/{number}").getrandbits(31)
