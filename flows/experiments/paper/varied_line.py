"""A line of `beyond` with a field of its variant in several values, and RollPacker beside it.

<name>/<value>/step_s          seconds for as many prompts as a step trains
               vs_rollpacker   RollPacker's, as published, over that
               over_plain      the same line's with the first value over that
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.experiments.paper.beyond import RIVALS, ROLLPACKER, Contender, ours, step_seconds
from flows.experiments.paper.experiment import Case, Part, Played
from flows.experiments.paper.rollpacker_case import RollpackerCase
from flows.experiments.paper.setups import SetUp
from flows.experiments.paper.variants import Variant

Vary = Callable[[Variant, float], Variant]  # a variant with another value


def lines_of(set_up: SetUp, rivals: tuple[str, ...]) -> Mapping[str, Contender]:
    """These rivals, and ours."""
    return {name: RIVALS[name] for name in rivals} | {"ours": ours(set_up)}


def part_of(
    name: str,
    set_up: SetUp,
    contender: Contender,
    vary: Vary,
    values: Mapping[str, float],
    seed: int,
) -> Part:
    """The line as `vary` makes it of each of `values`, by the name of the case; the first is the
    plain one."""

    def case(variant: Variant, num_steps: int) -> Case:
        return RollpackerCase(set_up=set_up, variant=variant, num_steps=num_steps, seed=seed)

    cases = {
        label: case(vary(contender.variant, value), contender.num_steps)
        for label, value in values.items()
    }
    published = RIVALS[ROLLPACKER]
    cases[ROLLPACKER] = case(published.variant, published.num_steps)

    def figures(played: Played) -> dict[str, float]:
        seconds = {value: step_seconds(steps, set_up) for value, steps in played.items()}
        rollpacker_s = seconds.pop(ROLLPACKER)
        plain_s = seconds[next(iter(values))]
        found: dict[str, float] = {}
        for value, taken_s in seconds.items():
            found[f"{name}/{value}/step_s"] = taken_s
            found[f"{name}/{value}/vs_rollpacker"] = rollpacker_s / taken_s
            found[f"{name}/{value}/over_plain"] = plain_s / taken_s
        return found

    return Part(name=name, cases=cases, figures=figures)
