"""What it gains to order a step's responses instead of choosing among them: the parts of Seer, and
the order by earlier epochs of RhymeRL and SortedRL.

    ordering/<set-up>/<setting>/<epoch>/step_s      seconds of a step
                                        over_sync   synchronous steps' seconds over that

Two epochs of the same few prompts. In the first a prompt is known by its first answer alone, in the
second by its longest answer in the first, too. All settings train the same responses, each with a
verdict as it ends, and have RollPacker's reward scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from research.paper.beyond import SEER, step_seconds
from research.paper.experiment import Case, Experiment, FigurePart, Played, Scale
from research.paper.rollpacker_case import RollpackerCase
from research.paper.setups import BY_MODEL, PREEMPTED, SetUp
from research.paper.variants import PaperVariant

EPOCH_STEPS = 3
SYNC = "sync"
SETTINGS: Mapping[str, PaperVariant] = {
    SYNC: replace(SEER, under_way=0.0, moves_running=False),
    "divided": replace(SEER, under_way=1.0),
    "half": replace(SEER, moves_running=False),
    "three_quarters": replace(SEER, under_way=0.75, moves_running=False),
    "seer": SEER,
}
# room for all that is asked; and a cache that is short, which preempts
SET_UPS: Mapping[str, SetUp] = {"14B": BY_MODEL["14B"], "preempted": PREEMPTED}


def ordering(scale: Scale) -> Experiment:
    """Every setting with room, and without."""
    return Experiment(
        name="ordering",
        about="a step's responses in an order: Seer's parts, and that of earlier epochs",
        unit="times",
        parts=tuple(part_of(name, set_up, scale.seed) for name, set_up in SET_UPS.items()),
    )


def part_of(name: str, set_up: SetUp, seed: int, epoch_steps: int = EPOCH_STEPS) -> FigurePart:
    """The settings in one set-up."""
    cases: dict[str, Case] = {
        setting: RollpackerCase(
            set_up=set_up,
            variant=variant,
            num_steps=2 * epoch_steps,
            seed=seed,
            num_rows=epoch_steps * set_up.prompts,
        )
        for setting, variant in SETTINGS.items()
    }

    def figures(played: Played) -> dict[str, float]:
        return compared(f"ordering/{name}", played, set_up)

    return FigurePart(name=f"ordering/{name}", cases=cases, figures=figures)


def compared(name: str, played: Played, set_up: SetUp) -> dict[str, float]:
    """Seconds of every setting in either epoch, of as many steps each, and `sync`'s over that."""
    found: dict[str, float] = {}
    middle = len(played[SYNC]) // 2
    for epoch, steps in (("first", slice(middle)), ("second", slice(middle, None))):
        sync_s = step_seconds(played[SYNC][steps], set_up)
        for setting, every in played.items():
            taken_s = step_seconds(every[steps], set_up)
            found[f"{name}/{setting}/{epoch}/step_s"] = taken_s
            found[f"{name}/{setting}/{epoch}/over_sync"] = sync_s / taken_s
    return found
