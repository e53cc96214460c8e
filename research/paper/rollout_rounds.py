"""RollPacker's figures 6, 10 and 11, and the curves of its artifact: what rounds take, and how long
their responses get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from research.paper.experiment import (
    Experiment,
    FigurePart,
    Played,
    Scale,
    mean,
)
from research.paper.rollpacker_case import case_of
from research.paper.setups import BY_CAP, BY_MODEL, PREEMPTED, STREAMED
from research.paper.variants import ETA, REWARD, SYNC, TAIL, PaperVariant

ETAS = (1.125, 1.25, 1.5)
KINDS = ("short", "long")


def figure_6(scale: Scale) -> Experiment:
    """One host, one model, two sizes of its engines."""
    part = FigurePart(
        name="fig6",
        cases={
            f"tp{size}": case_of(replace(PREEMPTED, engine_size=size), TAIL, scale)
            for size in (1, 2)
        },
        figures=_of_sizes,
    )
    return Experiment(
        name="fig6",
        about="Preemptions and rollouts by tensor-parallel size, Qwen3-8B with 32k on 8 devices",
        unit="count",
        parts=(part,),
    )


def _of_sizes(played: Played) -> dict[str, float]:
    return {
        f"fig6/{kind}/{size}/{figure}": mean(steps, f"{figure}", kind)
        for kind in KINDS
        for size, steps in played.items()
        for figure in ("preemptions", "rollout_s")
    }


def figure_10(scale: Scale) -> Experiment:
    """Short and long rounds beside synchronous ones, without planner and stream trainer, which the
    artifact's end-to-end run has switched off."""
    parts = tuple(
        FigurePart(
            name=f"fig10/{model}",
            cases={
                "rounds": case_of(set_up, REWARD, scale),
                "sync": case_of(set_up, SYNC, scale),
            },
            figures=partial(_of_rounds, model),
        )
        for model, set_up in BY_MODEL.items()
    )
    return Experiment(
        name="fig10",
        about="Rollouts of short and long rounds, and their longest responses",
        unit="seconds",
        parts=parts,
    )


def _of_rounds(model: str, played: Played) -> dict[str, float]:
    kinds = (("short", "rounds"), ("long", "rounds"), ("sync", "sync"))
    return {
        f"fig10/{model}/{kind}/{figure}": mean(played[case], figure, kind)
        for kind, case in kinds
        for figure in ("rollout_s", "max_tokens")
    }


def curves(scale: Scale) -> Experiment:
    """Tail batching on one host, as the artifact's end-to-end run has it."""
    part = FigurePart(
        name="curves", cases={"rounds": case_of(STREAMED, REWARD, scale)}, figures=_of_curves
    )
    return Experiment(
        name="curves",
        about="Rounds of the artifact's run, 7B with 4k on 8 devices, 64 x 4 responses",
        unit="seconds",
        parts=(part,),
    )


def _of_curves(played: Played) -> dict[str, float]:
    return {
        f"curves/{kind}/{figure}": mean(played["rounds"], figure, kind)
        for kind in KINDS
        for figure in ("rollout_s", "step_s", "max_tokens")
    }


def figure_11(scale: Scale) -> Experiment:
    """The sensitivity to eta, on prompts alone, on responses alone, and on both; mathematics alone,
    as in the artifact."""
    parts = tuple(
        FigurePart(
            name=f"fig11/{cap}/{name}",
            cases={"steps": case_of(replace(set_up, tasks=("math",)), variant, scale)},
            figures=partial(_mean_rollout, f"fig11/{cap}/{name}"),
        )
        for cap, set_up in BY_CAP.items()
        for name, variant in swept()
    )
    return Experiment(
        name="fig11",
        about="Seconds of a rollout, the mean of a period, by eta",
        unit="seconds",
        parts=parts,
    )


def swept() -> Iterator[tuple[str, PaperVariant]]:
    """The rollouts of a bound on responses, by their names."""
    yield "sync/1.0", SYNC
    for eta in ETAS:
        yield f"eta_p/{eta}", PaperVariant(eta_p=eta)
        yield f"eta_r/{eta}", PaperVariant(eta_r=eta)
    yield f"both/{ETA}", TAIL


def _mean_rollout(name: str, played: Played) -> dict[str, float]:
    return {name: mean(played["steps"], "rollout_s")}
