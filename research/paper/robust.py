"""How much our scheduler loses where lengths are not those that it was made for.

    robust/<lengths>/<setting>/step_s   seconds for as many prompts as a step trains
                               of_best  the shortest of the settings over that

The settings are ours (three levels of rounds with eta 1.5), two levels with as much, and nothing
put off, all else equal: packed rows, planner by lengths, stream trainer, no response in vain.
Whoever keeps one of them whatever the lengths are has `of_best` of what knowing them would give.
The planner goes by the lengths of rounds that are over: where they drift, each round is planned by
shorter ones; where they jump, by ones that are twice or half as long as what comes. One seed, for
any number of periods that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from research.paper.beyond import ours, step_seconds
from research.paper.experiment import Case, Experiment, FigurePart, Played, Scale
from research.paper.rollpacker_case import RollpackerCase
from research.paper.setups import BY_MODEL, SetUp
from research.paper.variants import PaperVariant

NUM_STEPS = 54  # six periods of ours, and lengths have time to drift
OURS = ours(BY_MODEL["14B"]).variant
SETTINGS: Mapping[str, PaperVariant] = {
    "ours": OURS,
    "two_levels": replace(OURS, num_levels=2),
    "none_put_off": replace(OURS, eta_p=1.0, num_levels=2),
}
SET_UPS: tuple[SetUp, ...] = (
    BY_MODEL["14B"],
    replace(BY_MODEL["14B"], lengths="no_tail"),
    replace(BY_MODEL["14B"], lengths="drifting"),
    replace(BY_MODEL["14B"], lengths="jumping"),
)


def robust(scale: Scale) -> Experiment:
    """Every setting on every law of lengths, in the set-up of 14B."""
    return Experiment(
        name="robust",
        about="ours where lengths have no tail, drift, or are not what was seen",
        unit="times",
        parts=tuple(part_of(set_up, scale.seed) for set_up in SET_UPS),
    )


def part_of(set_up: SetUp, seed: int, num_steps: int = NUM_STEPS) -> FigurePart:
    """The settings on one law of lengths."""
    name = f"robust/{set_up.lengths}"
    cases: dict[str, Case] = {
        setting: RollpackerCase(set_up=set_up, variant=variant, num_steps=num_steps, seed=seed)
        for setting, variant in SETTINGS.items()
    }

    def figures(played: Played) -> dict[str, float]:
        return compared(name, played, set_up)

    return FigurePart(name=name, cases=cases, figures=figures)


def compared(name: str, played: Played, set_up: SetUp) -> dict[str, float]:
    """Seconds of every setting, and what the best of them is of it."""
    seconds = {setting: step_seconds(steps, set_up) for setting, steps in played.items()}
    best = min(seconds.values())
    found = {f"{name}/{setting}/step_s": taken for setting, taken in seconds.items()}
    return found | {f"{name}/{setting}/of_best": best / taken for setting, taken in seconds.items()}
