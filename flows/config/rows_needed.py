"""Whether a task's rows suffice for a run's rounds and evaluations; with too few, the settings that
fit together, found by trying them on the same rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from artifacts.datasets.rows import Dataset
from flows.config.consistency import broken_rules
from flows.config.parts import Parts
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState

LEAST_ASKED = 2  # of evaluation.num_prompts
SHARE_ASKED = 0.2  # of few questions that are advised to be held out
MOST_ROWS = 1 << 20  # beyond which no number of rows is named


def misfit_of_rows(config: Parts, dataset: Dataset, unfit: Collection[int] = ()) -> str:
    """A sentence if the rows are too few, with settings that fit; else empty. unfit: rows to train
    on that are never asked."""
    rows, heldout = len(dataset.rows) - len(unfit), len(dataset.heldout)
    asked, launched = config.evaluation.num_prompts, _launched(config)
    if heldout >= asked and _can_plan(config, rows):
        return ""
    short = []
    if heldout < asked:
        short.append(
            "evaluation.num_prompts must be <= the task's held-out prompts"
            f" ({heldout}), got {asked}"
        )
    if not _can_plan(config, rows):
        short.append(
            f"a dataset must have as many rows as a round launches prompts ({launched}), got {rows}"
        )
    flags = next(_fitting(config, dataset, rows), "")
    needed = _rows_needed(config)
    more = f"give {needed} questions" if needed else "give more rows"
    cure = f"{flags} fit together, or {more}" if flags else more
    return f"{' and '.join(short)}; {cure}"


def _launched(config: Parts) -> int:
    """The most prompts that a round launches, waiting ones among them."""
    return max(shape.launch_prompts for shape in config.scheduling.algebra(config.batch).rounds)


def _can_plan(config: Parts, rows: int) -> bool:
    first = PlanningInputs(
        state=QueueState(),
        batch=config.batch,
        step=1,
        num_steps=config.num_steps,
        domains=[""] * rows,
        seed=config.seed,
    )
    try:
        config.scheduling.plan_round(first)
    except ValueError:
        return False
    return True


def _fitting(config: Parts, dataset: Dataset, rows: int) -> Iterator[str]:
    """The flags of settings with which the rows suffice, those with the largest batch first."""
    asked, heldout = config.evaluation.num_prompts, len(dataset.heldout)
    is_split = hasattr(config.task, "heldout_fraction") and not (
        getattr(config.task, "heldout_path", "") or getattr(config.task, "heldout_split", "")
    )
    distinct, told = rows + heldout, list[str]()
    if is_split and heldout < asked:
        distinct = len({row.identity for row in chain(dataset.rows, dataset.heldout)})
        asked = min(asked, max(LEAST_ASKED, round(SHARE_ASKED * distinct)))
        told.append(f"--set task.heldout_fraction={asked / distinct:.4g}")
        rows += heldout - asked * -(-(rows + heldout) // distinct)
    else:
        asked = min(asked, heldout)
    if asked < LEAST_ASKED:
        return
    if asked != config.evaluation.num_prompts:
        told.append(f"--set evaluation.num_prompts={asked}")
    for prompts in range(config.batch.prompts_per_step, 0, -1):
        batch = config.batch.model_copy(update={"prompts_per_step": prompts})
        changed = config.model_copy(update={"batch": batch})
        if _can_plan(changed, rows) and not broken_rules(changed):
            if prompts != config.batch.prompts_per_step:
                told.append(f"--set batch.prompts_per_step={prompts}")
            yield " ".join(told)
            return


def _rows_needed(config: Parts) -> int:
    """The least number of distinct questions with which nothing else need change; 0 if unknown."""
    fraction: float = getattr(config.task, "heldout_fraction", 0.0)
    asked, launched = config.evaluation.num_prompts, _launched(config)
    heldout_path: str = getattr(config.task, "heldout_path", "")
    if not fraction or heldout_path:
        return 0
    first = max(asked + launched, int(asked / fraction) - 1)
    fits = (
        total
        for total in range(first, MOST_ROWS)
        if round(fraction * total) >= asked and total - round(fraction * total) >= launched
    )
    return next(fits, 0)
