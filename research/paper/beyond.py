"""Beyond the papers: RollPacker, its rivals and our scheduler beside a lower bound.

    beyond/<set-up>/<policy>/step_s          seconds for as many prompts as a step trains, drained
                             of_bound        the lower bound over that
                             vs_rollpacker   RollPacker's, as published, over that
                             trained_tokens  mean of a trained response: shorter ones are a bias

The bound knows all lengths and is that of training every prompt on its first responses, as many
prompts as `HORIZON` steps have, with the micro-batches that the policy has. What trains other
responses, shorter ones or older ones, can lie beyond it. Every figure is a mean over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from research.paper.experiment import (
    Case,
    Experiment,
    FigurePart,
    Observed,
    Played,
    Scale,
    Steps,
    mean,
    total,
)
from research.paper.lower_bound import lower_bound, needed_groups, resources_of
from research.paper.rollpacker_case import RollpackerCase
from research.paper.setups import BY_MODEL, SetUp
from research.paper.variants import OVERLAP, REWARD, STREAM, SYNC, PaperVariant
from tasks.scheduling.policies.multilevel import LEVEL_ETA, levels_within

HORIZON = 9  # steps
PERIOD = 5  # steps: four short rounds and a long one
UNBIASED = replace(STREAM, eta_r=1.0)  # RollPacker without the factor that favours short answers
# a round keeps the faster two thirds of its prompts; see `ours` for the number of levels
OURS = replace(UNBIASED, eta_p=LEVEL_ETA, plans_by_lengths=True, stream_rule="devices", packs=True)
# no scheduler for real runs: rounds of prompts that are known to take about as long, none given up
KNOWN = replace(OURS, eta_p=1.0, knows_lengths=True)
# generation and training on halves of the devices, one step apart, with RollPacker's rewards:
# off-policy, and nothing put off
ASYNCHRONOUS = replace(REWARD, eta_p=1.0, eta_r=1.0, async_ratio=1.0, learner_share=0.5)
# a fifth of the prompts is trained in no step
DISCARD = replace(UNBIASED, discards=True)
# APRIL's, on the devices of the asynchronous lines: twice as many groups as a step trains are under
# way, the first to be complete are trained, and the others go on with their tokens, however old
RECYCLING = replace(ASYNCHRONOUS, at_deadline="train_anyway")
# partial rollouts: all devices generate, stop when a step has its groups, train, and go on
IN_TURN = replace(ASYNCHRONOUS, at_update="pause", learner_share=0.0, packs=True)
APRIL = replace(IN_TURN, at_deadline="train_anyway")  # as published
# Seer without its drafts: half of a step's responses under way, those of long prompts first, and
# moved while they run; verdicts as RollPacker has them
SEER = replace(REWARD, eta_p=1.0, eta_r=1.0, under_way=0.5, moves_running=True)
# with a bound: what takes long is passed over for four steps at most
OURS_IN_TURN = replace(IN_TURN, extra_lag=4, streams=True, stream_rule="devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What is played."""

    variant: PaperVariant
    num_steps: int  # planned ones: whole periods, so that its queue is empty at the end


ROLLPACKER = "rollpacker"
RIVALS: Mapping[str, Contender] = {
    "verl": Contender(variant=SYNC, num_steps=PERIOD),
    "rlhfuse": Contender(variant=OVERLAP, num_steps=PERIOD),
    ROLLPACKER: Contender(variant=STREAM, num_steps=PERIOD),
    "rollpacker_packed": Contender(variant=replace(STREAM, packs=True), num_steps=PERIOD),
    "unbiased": Contender(variant=UNBIASED, num_steps=PERIOD),
    "unbiased_packed": Contender(variant=replace(UNBIASED, packs=True), num_steps=PERIOD),
    "seer": Contender(variant=SEER, num_steps=PERIOD),
    "seer_packed": Contender(variant=replace(SEER, packs=True), num_steps=PERIOD),
    "one_step_off": Contender(variant=replace(ASYNCHRONOUS, at_update="drain"), num_steps=HORIZON),
    "asynchronous": Contender(variant=ASYNCHRONOUS, num_steps=HORIZON),
    "asynchronous_packed": Contender(variant=replace(ASYNCHRONOUS, packs=True), num_steps=HORIZON),
    "discard": Contender(variant=DISCARD, num_steps=HORIZON),
    "discard_packed": Contender(variant=replace(DISCARD, packs=True), num_steps=HORIZON),
    "recycling": Contender(variant=RECYCLING, num_steps=HORIZON),
    "recycling_packed": Contender(variant=replace(RECYCLING, packs=True), num_steps=HORIZON),
    "in_turn_packed": Contender(variant=IN_TURN, num_steps=HORIZON),
    "april_packed": Contender(variant=APRIL, num_steps=HORIZON),
}


def ours(set_up: SetUp, *, packs: bool = True) -> Contender:
    """Our scheduler for a set-up. Two thirds of a period's rounds are of the first level, two
    thirds of the others of the second, and so on; the last one has a single round."""
    levels = levels_within(set_up.cap_tokens)
    return Contender(
        variant=replace(OURS, num_levels=levels, packs=packs),
        num_steps=max(HORIZON, 3 ** (levels - 1)),
    )


def contenders(set_up: SetUp) -> dict[str, Contender]:
    """Everything that is played in a set-up, by name."""
    return {
        **RIVALS,
        "ours_unpacked": ours(set_up, packs=False),
        "ours": ours(set_up),
        "known": replace(ours(set_up), variant=KNOWN),
        "ours_in_turn": Contender(variant=OURS_IN_TURN, num_steps=HORIZON),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCase:
    """The lower bound of a set-up; a single `Observed` with seconds of a step."""

    set_up: SetUp
    packs: bool
    seed: int
    weight: float = 0.1

    @property
    def label(self) -> str:
        packed = ", packed" if self.packs else ""
        return f"{self.set_up.model} {self.set_up.cap_tokens} tokens{packed}: the lower bound"

    def play(self) -> tuple[Observed, ...]:
        run = RollpackerCase(
            set_up=self.set_up,
            variant=replace(UNBIASED, packs=self.packs),
            num_steps=HORIZON,
            seed=self.seed,
        ).run
        groups = needed_groups(run, HORIZON * self.set_up.prompts)
        bound = lower_bound(resources_of(run), groups, self.set_up.prompts)
        figures = {
            "step_s": bound.seconds / HORIZON,
            "latency_s": bound.latency_s / HORIZON,
            "work_s": bound.work_s / HORIZON,
            "update_s": bound.update_s / HORIZON,
        }
        return (Observed(kind="bound", figures=figures),)


def beyond(scale: Scale) -> Experiment:
    """Every contender in every set-up."""
    parts = (
        part_of(f"beyond/{name}/{policy}", set_up, contender, scale)
        for name, set_up in BY_MODEL.items()
        for policy, contender in contenders(set_up).items()
    )
    return Experiment(
        name="beyond",
        about="RollPacker, its rivals and our scheduler beside a lower bound",
        unit="times",
        parts=tuple(parts),
    )


def part_of(name: str, set_up: SetUp, contender: Contender, scale: Scale) -> FigurePart:
    """A line of the table."""
    cases: dict[str, Case] = {}
    for seed in range(scale.seed, scale.seed + scale.periods):  # a period of each
        cases[f"played/{seed}"] = _case(set_up, contender, seed)
        cases[f"rollpacker/{seed}"] = _case(set_up, RIVALS[ROLLPACKER], seed)
        cases[f"bound/{seed}"] = BoundCase(set_up=set_up, packs=contender.variant.packs, seed=seed)
    return FigurePart(name=name, cases=cases, figures=partial(_line, name, set_up))


def _case(set_up: SetUp, contender: Contender, seed: int) -> RollpackerCase:
    return RollpackerCase(
        set_up=set_up, variant=contender.variant, num_steps=contender.num_steps, seed=seed
    )


def _line(name: str, set_up: SetUp, played: Played) -> dict[str, float]:
    own = _steps(played, "played")
    step_s = step_seconds(own, set_up)
    num_responses = total(own, "num_prompts") * set_up.responses
    return {
        f"{name}/step_s": step_s,
        f"{name}/of_bound": mean(_steps(played, "bound"), "step_s") / step_s,
        f"{name}/vs_rollpacker": step_seconds(_steps(played, "rollpacker"), set_up) / step_s,
        f"{name}/trained_tokens": total(own, "trained_tokens") / num_responses,
    }


def _steps(played: Played, case: str) -> list[Observed]:
    """Of all seeds."""
    found = (steps for name, steps in played.items() if name.startswith(f"{case}/"))
    return [step for steps in found for step in steps]


def step_seconds(steps: Steps, set_up: SetUp) -> float:
    """Seconds for as many prompts as a step trains."""
    return total(steps, "step_s") * set_up.prompts / total(steps, "num_prompts")
