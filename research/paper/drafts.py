"""What it would gain to draft tokens where few responses decode, by how many tokens a step yields.

    drafts/<model>/<line>/<yield>/step_s          seconds for as many prompts as a step trains
                                  vs_rollpacker   RollPacker's, as published, over that
                                  over_plain      the same line's without drafts over that

A step with drafts verifies `DRAFT_TOKENS` tokens more of every sequence, each at the price of a
sequence, and is made where a token costs less by it: in the tail of a round. Exact: what is kept is
what would have been drawn. How many tokens it yields is a property of model, task and drafter that
nothing here knows, so every line is played with some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from research.paper.beyond import RIVALS, ROLLPACKER, Contender, ours, step_seconds
from research.paper.experiment import Case, Experiment, FigurePart, Played, Scale
from research.paper.rollpacker_case import RollpackerCase
from research.paper.setups import BY_MODEL, SetUp

YIELDS = (1.0, 1.25, 1.5, 2.0)  # tokens that a sequence gains in a step with drafts; 1: no drafts
RIVAL_LINES = (ROLLPACKER, "rollpacker_packed", "seer_packed")


def drafts(scale: Scale) -> Experiment:
    """Every line with every yield, for every model."""
    return Experiment(
        name="drafts",
        about="drafts where few responses decode, by the tokens that a step yields",
        unit="times",
        parts=tuple(
            part_of(f"drafts/{model}/{line}", set_up, contender, scale.seed)
            for model, set_up in BY_MODEL.items()
            for line, contender in lines_of(set_up).items()
        ),
    )


def lines_of(set_up: SetUp) -> Mapping[str, Contender]:
    """What is played with drafts and without."""
    return {name: RIVALS[name] for name in RIVAL_LINES} | {"ours": ours(set_up)}


def part_of(name: str, set_up: SetUp, contender: Contender, seed: int) -> FigurePart:
    """A line with every yield, and RollPacker beside it."""
    played = {f"{drafted:g}": replace(contender.variant, draft_yield=drafted) for drafted in YIELDS}
    cases: dict[str, Case] = {
        drafted: RollpackerCase(
            set_up=set_up, variant=variant, num_steps=contender.num_steps, seed=seed
        )
        for drafted, variant in played.items()
    }
    published = RIVALS[ROLLPACKER]
    cases[ROLLPACKER] = RollpackerCase(
        set_up=set_up, variant=published.variant, num_steps=published.num_steps, seed=seed
    )

    def figures(played: Played) -> dict[str, float]:
        return compared(name, played, set_up)

    return FigurePart(name=name, cases=cases, figures=figures)


def compared(name: str, played: Played, set_up: SetUp) -> dict[str, float]:
    """Seconds with every yield, and two lines over that: RollPacker, and the same without
    drafts."""
    seconds = {case: step_seconds(steps, set_up) for case, steps in played.items()}
    plain_s, rollpacker_s = seconds["1"], seconds.pop(ROLLPACKER)
    found: dict[str, float] = {}
    for drafted, taken_s in seconds.items():
        found[f"{name}/{drafted}/step_s"] = taken_s
        found[f"{name}/{drafted}/vs_rollpacker"] = rollpacker_s / taken_s
        found[f"{name}/{drafted}/over_plain"] = plain_s / taken_s
    return found
