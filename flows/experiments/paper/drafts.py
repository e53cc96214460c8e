"""What it would gain to draft tokens where few responses decode, by how many tokens a step yields.

    drafts/<model>/<line>/<yield>/...   (`varied_line`)

A step with drafts verifies `DRAFT_TOKENS` tokens more of every sequence, each at the price of a
sequence, and is made where a token costs less by it: in the tail of a round. Exact: what is kept is
what would have been drawn. How many tokens it yields is a property of model, task and drafter that
nothing here knows, so every line is played with some.
"""

from __future__ import annotations

from dataclasses import replace

from flows.experiments.paper.beyond import ROLLPACKER
from flows.experiments.paper.experiment import Experiment, Scale
from flows.experiments.paper.setups import BY_MODEL
from flows.experiments.paper.variants import Variant
from flows.experiments.paper.varied_line import lines_of, part_of

# tokens that a sequence gains in a step with drafts; 1: no drafts
YIELDS = {f"{drafted:g}": drafted for drafted in (1.0, 1.25, 1.5, 2.0)}
RIVAL_LINES = (ROLLPACKER, "rollpacker_packed", "seer_packed")


def drafts(scale: Scale) -> Experiment:
    """Every line with every yield, for every model."""
    return Experiment(
        name="drafts",
        about="drafts where few responses decode, by the tokens that a step yields",
        unit="times",
        parts=tuple(
            part_of(f"drafts/{model}/{line}", set_up, contender, yielding, YIELDS, scale.seed)
            for model, set_up in BY_MODEL.items()
            for line, contender in lines_of(set_up, RIVAL_LINES).items()
        ),
    )


def yielding(variant: Variant, drafted: float) -> Variant:
    """With so many tokens in a step with drafts."""
    return replace(variant, draft_yield=drafted)
