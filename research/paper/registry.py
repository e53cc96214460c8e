"""Every experiment, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from research.paper.beyond import beyond
from research.paper.drafts import drafts
from research.paper.experiment import Experiment, Scale
from research.paper.flash import roll_flash
from research.paper.ordering import ordering
from research.paper.polyrl import polyrl
from research.paper.rewards import figure_13
from research.paper.robust import robust
from research.paper.rollout_rounds import curves, figure_6, figure_10, figure_11
from research.paper.whole_steps import (
    figure_4,
    figure_14,
    over_rlhfuse,
    table_1,
    table_2,
    table_3,
    table_4,
)

EXPERIMENTS: Mapping[str, Callable[[Scale], Experiment]] = {
    "table1": table_1,
    "table2": table_2,
    "rlhfuse": over_rlhfuse,
    "fig4": figure_4,
    "fig6": figure_6,
    "fig10": figure_10,
    "fig11": figure_11,
    "curves": curves,
    "fig13": figure_13,
    "table3": table_3,
    "table4": table_4,
    "fig14": figure_14,
    "flash": roll_flash,
    "polyrl": polyrl,
    "beyond": beyond,
    "robust": robust,
    "ordering": ordering,
    "drafts": drafts,
}


def chosen(only: Sequence[str], scale: Scale) -> list[Experiment]:
    """Experiments with the parts that are asked for, all without any. ValueError for a name that
    chooses nothing."""
    every = [make(scale) for make in EXPERIMENTS.values()]
    for name in only:
        if not any(experiment.only([name]).parts for experiment in every):
            raise ValueError(
                f"--only must name an experiment or a figure of one, got {name!r}; --list has them"
            )
    narrowed = (experiment.only(only) for experiment in every)
    return [experiment for experiment in narrowed if experiment.parts]
