"""What can be compared: lists of variants, and the tables that are made of their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from research.ablations.ablation_figures import MeasuredRun, TableLine, report
from research.ablations.ablation_variants import (
    ADAPTED,
    ASYNCHRONY,
    COMPARABLE,
    ETA,
    LEVELS,
    OPEN,
    SERVED,
    VALIDATED,
    VARIANTS,
    AblationVariant,
)
from research.ablations.asynchrony_figures import asynchrony_report
from research.ablations.validation_figures import validation_report
from research.ablations.verdict_service import verdict_service

Tables = Callable[
    [Sequence[TableLine], Sequence[MeasuredRun], int], str
]  # of lines, runs and period


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Variants of one preset."""

    about: str  # what a reader learns of it
    preset: str  # what the variants change, unless another is asked for
    variants: Mapping[str, AblationVariant]  # by name, in the order of the tables
    tables: tuple[Tables, ...]  # Markdown each
    # the variant whose records tell what every other could be at best; empty tells nothing
    recorded: str = ""
    settings: tuple[str, ...] = ()  # of every variant, FIELD=VALUE; the user's go before
    # what is there while a run goes on
    beside: Callable[[], AbstractContextManager[object]] = nullcontext


COMPARISONS: Mapping[str, Comparison] = {
    "rollpacker": Comparison(
        about="what each of RollPacker's parts is worth",
        preset="smollm2-mixed",
        variants=VARIANTS,
        tables=(report,),
    ),
    "validation": Comparison(
        about="held-out reward over time beside plain synchronous rounds",
        preset="smollm2",
        variants=VALIDATED,
        tables=(validation_report, report),
        settings=(
            "evaluation.num_prompts=128",
            "evaluation.responses_per_prompt=2",
            "evaluation.every_steps=10",
        ),
    ),
    "adapters": Comparison(
        about="what adapters learn beside all weights, at equal steps and at equal time",
        preset="tiny",
        variants=ADAPTED,
        tables=(validation_report, report),
        settings=("evaluation.num_prompts=128", "evaluation.every_steps=10", *COMPARABLE),
    ),
    "eta": Comparison(
        about="what tail batching is worth by eta on prompts and on responses (its periods differ:"
        " 45 steps are whole ones of all)",
        preset="smollm2-answers",
        variants=ETA,
        tables=(report,),
    ),
    "levels": Comparison(
        about="what rounds of three levels are worth beside tail batching (20 steps are whole"
        " periods of all)",
        preset="smollm2-mixed",
        variants=LEVELS,
        tables=(report,),
    ),
    "asynchrony": Comparison(
        about="what rounds that overlap the training are worth, and could be at best",
        preset="smollm2-mixed",
        variants=ASYNCHRONY,
        tables=(report, asynchrony_report),
        recorded="sync",
    ),
    "service": Comparison(
        about="what they are worth where verdicts come from elsewhere, after a wait without work",
        preset="smollm2-answers",
        variants=SERVED,
        tables=(report, asynchrony_report),
        recorded="sync",
        beside=verdict_service,
    ),
    "elastic": Comparison(
        about="what being open to elastic workers costs a run to which none comes",
        preset="tiny-elastic",
        variants=OPEN,
        tables=(report,),
    ),
}
