"""RollPacker's tables 1 to 4 and figures 4, 13 and 14: whole steps, and what each part is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

from research.paper.experiment import (
    Case,
    Experiment,
    FigurePart,
    Played,
    Scale,
    Steps,
    mean,
    total,
)
from research.paper.rollpacker_case import case_of
from research.paper.setups import ALL_TASKS, BY_CAP, BY_MODEL, STREAMED
from research.paper.variants import (
    CUMULATIVE,
    OVERLAP,
    STREAM,
    SYNC,
    TAIL,
    TAIL_ALONE,
    PaperVariant,
)

STAGES = ("rollout", "reward", "train")
SCALED_DEVICES = (16, 32, 64, 128)
# a part of the scheduler: the one task that has a use for it, and the rounds without and with it
REWARD_PARTS: Mapping[str, tuple[str, PaperVariant, PaperVariant]] = {
    "judge": ("judge", replace(TAIL, judge="copied"), replace(TAIL, judge="pipelined")),
    "timeout": ("code", TAIL, replace(TAIL, adapts_timeouts=True)),
}


def table_1(scale: Scale) -> Experiment:
    """Where a synchronous step goes, by task."""
    parts = tuple(
        FigurePart(
            name=f"table1/{task}",
            cases={"steps": case_of(replace(BY_MODEL["14B"], tasks=(task,)), SYNC, scale)},
            figures=partial(_shares, f"table1/{task}"),
        )
        for task in ALL_TASKS
    )
    return Experiment(
        name="table1", about="Shares of a synchronous step, 14B with 16k", unit="share", parts=parts
    )


def _shares(name: str, played: Played) -> dict[str, float]:
    steps = played["steps"]
    whole = total(steps, "step_s")
    return {f"{name}/{stage}_share": total(steps, f"{stage}_s") / whole for stage in STAGES}


def table_2(scale: Scale) -> Experiment:
    """Each part on top of those before it, over synchronous steps."""
    parts = tuple(
        FigurePart(
            name=f"table2/{model}",
            cases={
                name: case_of(set_up, variant, scale)
                for name, variant in ({"sync": SYNC} | dict(CUMULATIVE)).items()
            },
            figures=partial(_gains, f"table2/{model}"),
        )
        for model, set_up in BY_MODEL.items()
    )
    return Experiment(
        name="table2",
        about="Cumulative speed-up over synchronous steps",
        unit="times",
        parts=parts,
    )


def _gains(name: str, played: Played) -> dict[str, float]:
    return {f"{name}/{part}": speed_up(played["sync"], played[part]) for part in CUMULATIVE}


def speed_up(before: Steps, after: Steps) -> float:
    """Steps of both train as many prompts."""
    return mean(before, "step_s") / mean(after, "step_s")


def over_rlhfuse(scale: Scale) -> Experiment:
    """All of RollPacker over synchronous steps with the stream trainer and rewards per response."""
    parts = tuple(
        FigurePart(
            name=f"rlhfuse/{model}",
            cases=_cases(scale, model, before=OVERLAP, after=STREAM),
            figures=partial(_one_gain, f"rlhfuse/{model}"),
        )
        for model in BY_MODEL
    )
    return Experiment(
        name="rlhfuse",
        about="Speed-up of all of RollPacker over RLHFuse",
        unit="times",
        parts=parts,
    )


def _cases(scale: Scale, model: str, **variants: PaperVariant) -> Mapping[str, Case]:
    return {name: case_of(BY_MODEL[model], variant, scale) for name, variant in variants.items()}


def _one_gain(name: str, played: Played) -> dict[str, float]:
    return {name: speed_up(played["before"], played["after"])}


def figure_4(scale: Scale) -> Experiment:
    """Where a period of tail batching goes: all shares of it together are 1."""
    set_up = replace(BY_MODEL["14B"], tasks=("code",))
    part = FigurePart(
        name="fig4", cases={"steps": case_of(set_up, TAIL_ALONE, scale)}, figures=_shares_of_period
    )
    return Experiment(
        name="fig4",
        about="Shares of a period with tail batching, 14B with 16k on programs",
        unit="share",
        parts=(part,),
    )


def _shares_of_period(played: Played) -> dict[str, float]:
    steps = played["steps"]
    whole = total(steps, "step_s")
    return {
        f"fig4/{kind}/{stage}_share": total(steps, f"{stage}_s", kind) / whole
        for kind in ("short", "long")
        for stage in STAGES
    }


def figure_13(scale: Scale) -> Experiment:
    """Rollout and reward together, with a part of the reward scheduler and without. Either way the
    judge lies on the engines' devices, as in the artifact: compared is copying a layer before it
    computes, and while others do."""
    parts = tuple(
        FigurePart(
            name=f"fig13/{part}/{cap}",
            cases={
                "before": case_of(replace(set_up, tasks=(task,)), before, scale),
                "after": case_of(replace(set_up, tasks=(task,)), after, scale),
            },
            figures=partial(_reward_gain, f"fig13/{part}/{cap}"),
        )
        for part, (task, before, after) in REWARD_PARTS.items()
        for cap, set_up in BY_CAP.items()
    )
    return Experiment(
        name="fig13",
        about="Speed-up of rollout and reward by the pipelined judge and by adaptive time limits",
        unit="times",
        parts=parts,
    )


def _reward_gain(name: str, played: Played) -> dict[str, float]:
    before, after = (
        mean(played[case], "rollout_s") + mean(played[case], "reward_s")
        for case in ("before", "after")
    )
    return {name: before / after}


def table_3(scale: Scale) -> Experiment:
    """The stream trainer alone, in the artifact's set-up."""
    part = FigurePart(
        name="table3/stream",
        cases={
            "before": case_of(STREAMED, PaperVariant(), scale),
            "after": case_of(STREAMED, OVERLAP, scale),
        },
        figures=partial(_one_gain, "table3/stream"),
    )
    return Experiment(
        name="table3",
        about="Speed-up by the stream trainer, 7B with 4k on 8 devices, 64 x 4 responses",
        unit="times",
        parts=(part,),
    )


def table_4(scale: Scale) -> Experiment:
    """How much of a rollout is left when the stream trainer frees the first devices."""
    parts = tuple(
        FigurePart(
            name=f"table4/{model}",
            cases=_cases(scale, model, steps=STREAM),
            figures=partial(_time_left, f"table4/{model}"),
        )
        for model in BY_MODEL
    )
    return Experiment(
        name="table4",
        about="Share of a rollout that is left when devices are freed first",
        unit="share",
        parts=parts,
    )


def _time_left(name: str, played: Played) -> dict[str, float]:
    """The mean over the rounds that free any; nothing without one."""
    steps = played["steps"]
    shares = [step.figures["left_share"] for step in steps if step.figures["freed"]]
    return {name: fmean(shares)} if shares else {}


def figure_14(scale: Scale) -> Experiment:
    """All of RollPacker on more and more devices, over synchronous steps on the fewest."""
    smallest = BY_MODEL["7B"]
    cases = {"sync": case_of(smallest, SYNC, scale)} | {
        str(count): case_of(replace(smallest, num_devices=count), STREAM, scale)
        for count in SCALED_DEVICES
    }
    part = FigurePart(name="fig14", cases=cases, figures=_scaled)
    return Experiment(
        name="fig14",
        about="Throughput over synchronous steps on 16 devices, 7B with 8k",
        unit="times",
        parts=(part,),
    )


def _scaled(played: Played) -> dict[str, float]:
    return {
        f"fig14/{count}": speed_up(played["sync"], played[str(count)]) for count in SCALED_DEVICES
    }
