"""Ours where lengths are others: what is played, and what its figures say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from research.ablations.policies import policy_of
from research.paper.experiment import Observed, Scale
from research.paper.robust import NUM_STEPS, SET_UPS, SETTINGS, part_of, robust
from research.paper.setups import BY_MODEL, Lengths
from research.paper.variants import PaperVariant
from research.paper.workload import work_of
from tasks.scheduling.batch import BatchConfig

BATCH = BatchConfig(prompts_per_step=128, responses_per_prompt=8)
SMALL = replace(BY_MODEL["14B"], num_devices=16, prompts=6, responses=2, cap_tokens=512)


@pytest.mark.parametrize("variant", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_plays_whole_periods_and_launches_no_response_in_vain(
    variant: PaperVariant,
) -> None:
    algebra = policy_of(variant.scheduling).algebra(BATCH)
    assert NUM_STEPS % algebra.period_steps == 0
    for shape in algebra.rounds:
        assert shape.launch_per_prompt == shape.accept_per_prompt


def test_set_ups_differ_by_their_lengths_alone() -> None:
    by_lengths = {set_up.lengths: set_up for set_up in SET_UPS}
    assert list(by_lengths) == ["published", "no_tail", "drifting", "jumping"]
    for name, set_up in by_lengths.items():
        assert set_up == replace(BY_MODEL["14B"], lengths=name)
    prompts = [f"0/{row}" for row in range(300)]

    def lengths(name: Lengths, step: int) -> list[int]:
        writer = work_of(by_lengths[name], SETTINGS["ours"]).writer(step, 0)
        return sorted(writer.tokens(prompt, 0) for prompt in prompts)

    assert lengths("no_tail", 1)[-1] < 3 * lengths("no_tail", 1)[150]
    assert lengths("published", 1)[-1] > 10 * lengths("published", 1)[150]
    assert lengths("drifting", 1) == lengths("published", 1) == lengths("published", 41)
    assert lengths("jumping", 9) == lengths("published", 9) == lengths("jumping", 19)
    halved = lengths("jumping", 10)[150] / lengths("jumping", 9)[150]
    assert halved == pytest.approx(0.5, rel=0.01)
    assert lengths("drifting", 41)[150] == pytest.approx(2 * lengths("drifting", 1)[150], rel=0.01)


def test_a_setting_is_told_as_a_share_of_the_best() -> None:
    part = part_of(replace(SMALL, lengths="no_tail"), seed=0)

    def steps(step_s: float) -> tuple[Observed, ...]:
        return (Observed(kind="any", figures={"step_s": step_s, "num_prompts": 6.0}),)

    told = part.figures({"ours": steps(4.0), "two_levels": steps(2.0), "none_put_off": steps(2.5)})
    assert told["robust/no_tail/ours/of_best"] == 0.5
    assert told["robust/no_tail/two_levels/of_best"] == 1.0
    assert told["robust/no_tail/none_put_off/step_s"] == 2.5


def test_settings_play_in_small() -> None:
    labels: set[str] = set()
    for set_up in SET_UPS:
        part = part_of(replace(SMALL, lengths=set_up.lengths), seed=0, num_steps=9)
        labels |= {case.label for case in part.cases.values()}
        told = part.figures({case: played.play() for case, played in part.cases.items()})
        assert max(told[figure] for figure in told if figure.endswith("of_best")) == 1.0
    assert len(labels) == len(SET_UPS) * len(SETTINGS)
    assert len(robust(Scale(periods=1)).parts) == len(SET_UPS)
