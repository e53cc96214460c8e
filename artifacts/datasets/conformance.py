"""Checks that the rows of a task are what a run needs: questions with answers, the same for the
same seed, and none on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import get_args

from artifacts.conformance import RuleBroken, RuleCheck, RuleFindings, shown
from artifacts.datasets.rows import Dataset, Role, Row

SEEDS = (0, 1, 2)
LEAST_HELDOUT = 2  # that an evaluation asks


class DatasetRule(StrEnum):
    """The rules, in the order in which they are reported."""

    LOADS = "load gives rows to train on"
    ROWS = "every row has a domain, a question that a user asks, and a gold"
    REPEATS = "the same seed gives the same rows"
    DISJOINT = "no held-out question is trained"
    HELDOUT = f"at least {LEAST_HELDOUT} questions are held out, the same for every seed"


def check_dataset(load: Callable[[int], Dataset]) -> tuple[tuple[RuleCheck, ...], str]:
    """Check the rows of a few seeds. load: makes the task anew and loads the rows of a seed.
    Returns the verdicts and a line with the numbers of rows."""
    findings, loaded = RuleFindings(DatasetRule), list[Dataset]()
    for seed in SEEDS:
        with findings.trying(DatasetRule.LOADS):
            loaded.append(load(seed))
            if not loaded[-1].rows:
                raise RuleBroken("a task must have rows to train on, got none; load some")
        if findings.is_broken(DatasetRule.LOADS):
            return findings.checks, ""
        dataset = loaded[-1]
        with findings.trying(DatasetRule.ROWS):
            for side in (dataset.rows, dataset.heldout):
                for place, row in enumerate(side):
                    _check_row(row, place)
        with findings.trying(DatasetRule.REPEATS):
            if load(seed).digest != dataset.digest:
                raise RuleBroken(
                    f"the rows of seed {seed} must be the same whenever they are loaded, the second"
                    " time they were others: every process loads its own; draw from"
                    " random.Random(seed) alone, and sort what comes from a set or a folder"
                )
        with findings.trying(DatasetRule.DISJOINT):
            _check_sides(dataset)
    with findings.trying(DatasetRule.HELDOUT):
        _check_heldout(loaded)
    first = loaded[0]
    domains = ", ".join(f"{name} {count:,}" for name, count in Counter(first.domains).items())
    return findings.checks, (
        f"{len(first.rows):,} rows to train on ({domains}), {len(first.heldout):,} held out"
    )


def _check_row(row: object, place: int) -> None:
    if not isinstance(row, Row):
        raise RuleBroken(f"row {place} must be a Row, got {shown(row)}; use question_row")
    for name in ("domain", "text", "gold"):
        value = getattr(row, name)
        if not isinstance(value, str) or not (value.strip() or name == "gold"):
            raise RuleBroken(f"{name} of row {place} must be a text, got {shown(value)}; set it")
    for turn in row.messages:
        if turn.role not in get_args(Role) or not isinstance(turn.content, str):
            raise RuleBroken(
                f"a message of row {place} must have a role of {', '.join(get_args(Role))} and a"
                f" text, got {shown(turn)}; correct it"
            )
    if row.messages and row.messages[-1].role != "user":
        raise RuleBroken(
            f"row {place} must end with a question of the user's, got {shown(row.messages[-1])};"
            " leave the answer to the model"
        )


def _check_sides(dataset: Dataset) -> None:
    heldout = {row.identity for row in dataset.heldout}
    both = [row.text for row in dataset.rows if row.identity in heldout]
    if both:
        raise RuleBroken(
            f"no held-out question may be trained, {len(both)} are on both sides, such as"
            f" {shown(both[0])}; divide by the question's hash, as"
            " artifacts.datasets.rows.generate does"
        )


def _check_heldout(loaded: list[Dataset]) -> None:
    first = loaded[0].heldout
    if len(first) < LEAST_HELDOUT:
        raise RuleBroken(
            f"a task must hold out at least {LEAST_HELDOUT} questions, got {len(first)}; hold out"
            " more"
        )
    if any(
        [row.identity for row in each.heldout] != [row.identity for row in first] for each in loaded
    ):
        raise RuleBroken(
            "the held-out questions must be the same for every seed, they are not: runs of two"
            " seeds could not be compared; draw them without the seed"
        )
