"""RollPacker's figure 13: what the parts of the reward scheduler are worth by themselves.

The judge lies on the engines' devices either way, as in the artifact: what is compared is copying a
layer before it computes, and while others do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from research.paper.experiment import Experiment, FigurePart, Played, Scale, mean
from research.paper.rollpacker_case import case_of
from research.paper.setups import BY_CAP
from research.paper.variants import TAIL, PaperVariant

# a part of the scheduler: the one task that has a use for it, and the rounds without and with it
PARTS: Mapping[str, tuple[str, PaperVariant, PaperVariant]] = {
    "judge": ("judge", replace(TAIL, judge="copied"), replace(TAIL, judge="pipelined")),
    "timeout": ("code", TAIL, replace(TAIL, adapts_timeouts=True)),
}


def figure_13(scale: Scale) -> Experiment:
    """Rollout and reward together, with the part and without."""
    parts = tuple(
        FigurePart(
            name=f"fig13/{part}/{cap}",
            cases={
                "before": case_of(replace(set_up, tasks=(task,)), before, scale),
                "after": case_of(replace(set_up, tasks=(task,)), after, scale),
            },
            figures=partial(_gain, f"fig13/{part}/{cap}"),
        )
        for part, (task, before, after) in PARTS.items()
        for cap, set_up in BY_CAP.items()
    )
    return Experiment(
        name="fig13",
        about="Speed-up of rollout and reward by the pipelined judge and by adaptive time limits",
        unit="times",
        parts=parts,
    )


def _gain(name: str, played: Played) -> dict[str, float]:
    before, after = (
        mean(played[case], "rollout_s") + mean(played[case], "reward_s")
        for case in ("before", "after")
    )
    return {name: before / after}
