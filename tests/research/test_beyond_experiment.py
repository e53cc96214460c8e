"""RollPacker, its rivals and ours beside the lower bound: what is played and what a line says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from research.ablations.policies import policy_of
from research.paper.beyond import (
    HORIZON,
    ROLLPACKER,
    BoundCase,
    Contender,
    beyond,
    contenders,
    part_of,
)
from research.paper.experiment import Observed, Scale
from research.paper.rollpacker_case import RollpackerCase
from research.paper.setups import BY_MODEL
from tasks.scheduling.batch import BatchConfig

BATCH = BatchConfig(prompts_per_step=128, responses_per_prompt=8)
SMALL = replace(BY_MODEL["7B"], num_devices=8, prompts=6, responses=2, cap_tokens=512)
CONTENDERS = contenders(BY_MODEL["7B"])
FIGURES = {"step_s", "of_bound", "vs_rollpacker", "trained_tokens"}


def test_every_set_up_has_a_line_for_every_policy_and_a_case_is_shared() -> None:
    experiment = beyond(Scale(periods=1))
    assert len(experiment.parts) == len(BY_MODEL) * len(CONTENDERS)
    rollpacker = [part.cases["rollpacker/0"] for part in experiment.parts]
    assert len(set(rollpacker)) == len(BY_MODEL)


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=CONTENDERS)
def test_runs_are_whole_periods_or_steps_that_defer_nothing(contender: Contender) -> None:
    period = policy_of(contender.variant.scheduling).algebra(BATCH).period_steps
    assert contender.num_steps % period == 0


@pytest.mark.parametrize(("name", "levels"), [("7B", 2), ("14B", 3), ("32B", 4)])
def test_ours_plays_whole_periods_and_has_a_level_more_with_each_doubling_of_the_bound(
    name: str, levels: int
) -> None:
    contender = contenders(BY_MODEL[name])["ours"]
    algebra = policy_of(contender.variant.scheduling).algebra(BATCH)
    assert contender.variant.num_levels == levels
    assert contender.num_steps == max(9, algebra.period_steps)
    assert contender.num_steps % algebra.period_steps == 0


def test_what_is_ours_asks_for_no_response_more_than_it_trains() -> None:
    for name in ("ours", "ours_unpacked"):
        for shape in policy_of(CONTENDERS[name].variant.scheduling).algebra(BATCH).rounds:
            assert shape.launch_per_prompt == shape.accept_per_prompt


def test_off_policy_rivals_are_those_whose_labels_say_so() -> None:
    for contender in CONTENDERS.values():
        run = RollpackerCase(
            set_up=SMALL, variant=contender.variant, num_steps=contender.num_steps, seed=0
        )
        algebra = run.run.policy.algebra(run.run.batch)
        assert algebra.is_off_policy == ("async ratio" in run.label)
        assert bool(run.run.learner_devices) == algebra.overlaps


WITHOUT_A_QUEUE = (
    "one_step_off", "asynchronous", "recycling", "discard", "april_packed", "ours_in_turn"
)  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_A_QUEUE)
def test_a_line_that_puts_nothing_off_trains_every_group_of_its_steps(name: str) -> None:
    part = part_of(f"beyond/small/{name}", SMALL, CONTENDERS[name], Scale(periods=1))
    played = {case: it.play() for case, it in part.cases.items()}
    assert [step.figures["num_prompts"] for step in played["played/0"]] == [SMALL.prompts] * HORIZON
    assert {figure.rpartition("/")[2] for figure in part.figures(played)} == FIGURES


def test_a_line_divides_by_the_prompts_that_were_trained() -> None:
    """Nine steps of 3 s and a drain with half of the prompts of a step."""
    part = part_of("beyond/7B/ours", BY_MODEL["7B"], CONTENDERS["ours"], Scale(periods=1))

    def step(step_s: float, num_prompts: int) -> Observed:
        tokens = 100.0 * 8 * num_prompts
        figures = {"step_s": step_s, "num_prompts": num_prompts, "trained_tokens": tokens}
        return Observed(kind="any", figures=figures)

    played = {
        "played/0": (*[step(3.0, 128)] * 9, step(1.5, 64)),
        "rollpacker/0": (step(6.0, 128),) * 5,
        "bound/0": (Observed(kind="bound", figures={"step_s": 1.5}),),
    }
    line = part.figures(played)
    assert line["beyond/7B/ours/step_s"] == pytest.approx(3.0)
    assert line["beyond/7B/ours/of_bound"] == pytest.approx(0.5)
    assert line["beyond/7B/ours/vs_rollpacker"] == pytest.approx(2.0)
    assert line["beyond/7B/ours/trained_tokens"] == pytest.approx(100.0)


def test_ours_is_above_its_bound_in_small() -> None:
    part = part_of("beyond/small/ours", SMALL, CONTENDERS["ours"], Scale(periods=1))
    line = part.figures({name: case.play() for name, case in part.cases.items()})
    assert {name.rpartition("/")[2] for name in line} == FIGURES
    assert 0 < line["beyond/small/ours/of_bound"] <= 1


def test_packed_rows_lower_the_bound() -> None:
    packed, single = (
        BoundCase(set_up=SMALL, packs=packs, seed=0).play()[0].figures for packs in (True, False)
    )
    assert packed["work_s"] < single["work_s"]
    assert packed["update_s"] == single["update_s"]


def test_what_a_rival_gives_up_is_told_by_its_algebra_and_its_label() -> None:
    """Prompts by over-sampling, the bound on lags by recycling; nobody else gives up either."""
    for name, contender in CONTENDERS.items():
        algebra = policy_of(contender.variant.scheduling).algebra(BATCH)
        case = RollpackerCase(
            set_up=SMALL, variant=contender.variant, num_steps=contender.num_steps, seed=0
        )
        discards = name.startswith("discard")
        recycles = name.startswith(("recycling", "april"))
        assert algebra.dropped_prompts == (32 if discards else 0)
        assert (algebra.max_lag is None) == recycles
        assert ("discards" in case.label, "no bound" in case.label) == (discards, recycles)


def test_rollpacker_is_the_published_one() -> None:
    variant = CONTENDERS[ROLLPACKER].variant
    assert (variant.eta_p, variant.eta_r, variant.packs) == (1.25, 1.25, False)
    case = RollpackerCase(set_up=SMALL, variant=variant, num_steps=HORIZON, seed=0)
    assert case.run.planner.rule == "preemptions"
