"""What it gains to verify a deferred response along the tokens that it had when it was given up, by
how many of them come back.

    verified/<model>/<line>/<tokens>/...   (`varied_line`); tokens: until one differs, on average

A response draws with the same noise when it is asked again, so that it is the weights' doing alone
where it goes another way. Its draft is read in one prefill, and the rest is decoded. Exact: what is
kept is what would have been drawn. How far that is, is a property of the model, its optimizer and
its numbers that nothing here knows, so every line is played with some distances.
"""

from __future__ import annotations

from dataclasses import replace

from flows.experiments.paper.beyond import ROLLPACKER
from flows.experiments.paper.experiment import Experiment, Scale
from flows.experiments.paper.setups import BY_MODEL
from flows.experiments.paper.variants import Variant
from flows.experiments.paper.varied_line import lines_of, part_of

DISTANCES = (100, 300, 1_000, 3_000)  # tokens
# probability that a token differs, by how many agree before it on average; 0: nothing is verified
DIVERGENCES = {"0": 1.0, **{str(tokens): 1 / tokens for tokens in DISTANCES}, "all": 0.0}
RIVAL_LINES = (ROLLPACKER, "rollpacker_packed", "unbiased_packed")


def verified(scale: Scale) -> Experiment:
    """Every line with every distance, for every model."""
    return Experiment(
        name="verified",
        about="deferred responses verified along what they had, by how much of it comes back",
        unit="times",
        parts=tuple(
            part_of(f"verified/{model}/{name}", set_up, line, diverging, DIVERGENCES, scale.seed)
            for model, set_up in BY_MODEL.items()
            for name, line in lines_of(set_up, RIVAL_LINES).items()
        ),
    )


def diverging(variant: Variant, divergence: float) -> Variant:
    """With this probability that a token of a deferred response is not drawn again."""
    return replace(variant, draft_divergence=divergence)
