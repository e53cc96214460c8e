"""Whether a task's rows suffice for a run's rounds and evaluations; with too few, the settings that
fit together, found by trying them on the same rules. The preset `own` takes them of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, TypeVar

from artifacts.datasets.rows import Dataset
from flows.config.consistency import broken_rules
from flows.config.parts import Parts
from flows.config.presets import OWN
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.prompt_stream import Answering
from tasks.scheduling.queue_state import QueueState

LEAST_ASKED = 2  # of evaluation.num_prompts
SHARE_ASKED = 0.2  # of few questions that are advised to be held out
MOST_ROWS = 1 << 20  # beyond which no number of rows is named
Config = TypeVar("Config", bound=Parts)


def misfit_of_rows(config: Parts, dataset: Dataset, unfit: Collection[int] = ()) -> str:
    """A sentence if the rows are too few, with settings that fit; else empty. unfit: rows to train
    on that are never asked."""
    rows, heldout = len(dataset.rows) - len(unfit), len(dataset.heldout)
    asked, launched = heldout_asked(config), _launched(config)
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
    fitting = _fitting(config, dataset, rows)
    flags = " ".join(f"--set {field}={value}" for field, value in fitting.items())
    fit = "fits" if len(fitting) == 1 else "fit together"
    needed = _rows_needed(config)
    more = f"give {needed} questions" if needed else "give more rows"
    cure = f"{flags} {fit}, or {more}" if flags else more
    return f"{' and '.join(short)}; {cure}"


def heldout_asked(config: Parts) -> int:
    """Held-out questions that a run asks: none where it does not train."""
    return config.evaluation.num_prompts if config.trains else 0


def _launched(config: Parts) -> int:
    """The rows of the most prompts that a round launches, waiting ones among them."""
    most = max(shape.launch_prompts for shape in config.scheduling.algebra(config.batch).rounds)
    return -(-most // config.learner.lora.answering.times)


def _can_plan(config: Parts, rows: int) -> bool:
    first = PlanningInputs(
        state=QueueState(),
        batch=config.batch,
        step=1,
        num_steps=config.num_steps,
        domains=[""] * rows,
        seed=config.seed,
        answering=Answering(names=("",) * config.learner.lora.answering.times),
    )
    try:
        config.scheduling.plan_round(first)
    except ValueError:
        return False
    return True


def _fitting(config: Parts, dataset: Dataset, rows: int) -> dict[str, float]:
    """The settings with which the rows suffice, those with the largest batch; empty if there are
    none."""
    asked, heldout = config.evaluation.num_prompts, len(dataset.heldout)
    is_split = hasattr(config.task, "heldout_fraction") and not (
        getattr(config.task, "heldout_path", "") or getattr(config.task, "heldout_split", "")
    )
    distinct, found = rows + heldout, dict[str, float]()
    if is_split and heldout < asked:
        distinct = len({row.identity for row in chain(dataset.rows, dataset.heldout)})
        asked = min(asked, max(LEAST_ASKED, round(SHARE_ASKED * distinct)))
        found["task.heldout_fraction"] = float(f"{asked / distinct:.4g}")
        rows += heldout - asked * -(-(rows + heldout) // distinct)
    else:
        asked = min(asked, heldout)
    if asked < LEAST_ASKED:
        return {}
    if asked != config.evaluation.num_prompts:
        found["evaluation.num_prompts"] = asked
    for prompts in range(config.batch.prompts_per_step, 0, -1):
        changed = changed_parts(config, {"batch.prompts_per_step": prompts})
        if _can_plan(changed, rows) and not broken_rules(changed):
            if prompts != config.batch.prompts_per_step:
                found["batch.prompts_per_step"] = prompts
            return found
    return {}


def fitted(config: Config, dataset: Dataset) -> tuple[Config, str]:
    """With the preset `own`, the configuration that fits the rows of its task, and a line that says
    what was changed; unchanged, and an empty line, where the rows suffice, where nothing fits, and
    where a setting that the user has given is in the way."""
    if config.preset != OWN or config.resume or not misfit_of_rows(config, dataset):
        return config, ""
    found = _fitting(config, dataset, len(dataset.rows))
    for field in found:
        part, _, name = field.partition(".")
        if name in getattr(config, part).model_fields_set:
            return config, ""
    total = len(dataset.rows) + len(dataset.heldout)
    told = ", ".join(f"{field}={value:g}" for field, value in found.items())
    said = f"fitted to {total} questions: {told}" if found else ""
    return changed_parts(config, found), said


def changed_parts(config: Config, values: Mapping[str, float]) -> Config:
    """The configuration with some values of parts, each by "part.field"; nothing is validated."""
    parts: dict[str, Any] = {}  # Any: configurations of parts
    for field, value in values.items():
        part, _, name = field.partition(".")
        below = parts.get(part, getattr(config, part))
        parts[part] = below.model_copy(update={name: value})
    return config.model_copy(update=parts)


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
