"""Advantages and samples by table."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from learner_factories import make_group

from artifacts.store import Store
from tasks.learner.advantage import (
    DrGrpoAdvantage,
    GrpoAdvantage,
    Moments,
    ReinforcePlusPlusAdvantage,
    group_advantages,
    step_moments,
)
from tasks.learner.collective import baseline_moments, record_moments
from tasks.learner.dealing import GroupPart
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.samples import (
    ConstantLength,
    SequenceMean,
    TokenMean,
    advantages_of,
    moments_of,
    training_set,
)


@pytest.mark.parametrize(
    ("rewards", "grpo", "dr_grpo"),
    [
        ([0.0, 1.0], [-1.0, 1.0], [-0.5, 0.5]),
        ([0.0, 0.0, 0.0, 1.0], [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)], [-0.25] * 3 + [0.75]),
        ([1.0, 1.0, 1.0], [0.0] * 3, [0.0] * 3),
        ([0.1 + 0.2, 0.1 + 0.2], [0.0] * 2, [0.0] * 2),
        ([1.0, None, 0.0], [1.0, None, -1.0], [0.5, None, -0.5]),
        ([1.0, None], [0.0, None], [0.0, None]),
        ([None, None], [None, None], [None, None]),
        ([], [], []),
    ],
)
def test_advantages(
    rewards: list[float | None], grpo: list[float | None], dr_grpo: list[float | None]
) -> None:
    for advantage, expected in ((GrpoAdvantage(), grpo), (DrGrpoAdvantage(), dr_grpo)):
        got = group_advantages(rewards, advantage)
        assert [value is None for value in got] == [value is None for value in expected]
        verdicts = [value for value in expected if value is not None]
        assert [value for value in got if value is not None] == pytest.approx(verdicts, rel=1e-5)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -0.7])
def test_a_step_of_equal_rewards_has_no_advantage_at_all(reward: float) -> None:
    advantage = ReinforcePlusPlusAdvantage(baseline="step")
    for count in range(2, 40):
        own = step_moments([[reward] * count], advantage)
        assert own is not None
        for moments in (own, Moments.together([own, Moments.of([]), Moments.of([reward] * 3)])):
            assert group_advantages([reward] * count, advantage, moments) == [0.0] * count


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, math.nan], GrpoAdvantage())


@pytest.mark.parametrize(
    ("normalisation", "weights", "normaliser"),
    [
        (TokenMean(), [1.0, 1.0], 5.0),
        (SequenceMean(), [1.0, 0.25], 2.0),
        (ConstantLength(length_tokens=8), [0.125, 0.125], 2.0),
    ],
)
def test_normalisation_is_a_weight_and_an_addition_per_response(
    normalisation: TokenMean | SequenceMean | ConstantLength,
    weights: list[float],
    normaliser: float,
) -> None:
    data = training_set(
        [make_group((1,), [(2,), (3, 4, 5, 6)], [0.0, 1.0])], GrpoAdvantage(), normalisation
    )
    assert [sample.weight for sample in data.samples] == weights
    assert data.normaliser == normaliser


def test_infra_responses_change_neither_mean_nor_normaliser() -> None:
    responses: list[tuple[int, ...]] = [(2,), (3, 4), (5,)]
    with_infra = training_set(
        [make_group((1,), responses, [0.0, 1.0, None])], GrpoAdvantage(), TokenMean()
    )
    without = training_set(
        [make_group((1,), responses[:2], [0.0, 1.0])], GrpoAdvantage(), TokenMean()
    )
    assert with_infra.samples == without.samples
    assert with_infra.normaliser == without.normaliser == 3.0
    assert with_infra.num_responses_excluded == 1


def test_an_empty_response_counts_for_the_mean_but_is_not_trained() -> None:
    data = training_set(
        [make_group((1,), [(), (3, 4)], [0.0, 1.0])], DrGrpoAdvantage(), TokenMean()
    )
    assert [sample.advantages[0] for sample in data.samples] == [0.5]
    assert data.num_responses_excluded == 1


def test_groups_without_spread_are_counted() -> None:
    groups = [
        make_group((1,), [(2,), (3,)], rewards) for rewards in ([1.0, 1.0], [0.0, 1.0], [None, 1.0])
    ]
    assert training_set(groups, GrpoAdvantage(), TokenMean()).num_groups_flat == 2


STEP: list[list[float | None]] = [[0.0, 1.0], [1.0, 1.0], [None, 0.0], [0.0]]


@pytest.mark.parametrize("baseline", ["step", "group"])
def test_reinforce_plus_plus_compares_with_the_whole_step(baseline: str) -> None:
    """Of 0, 1, 1, 1, 0, 0 mean and deviation are 1/2; without their groups' means they are -1/2,
    1/2, 0, 0, 0, 0, whose deviation is sqrt(1/2 / 6)."""
    advantage = ReinforcePlusPlusAdvantage.model_validate({"baseline": baseline})
    step = step_moments(STEP, advantage)
    assert step is not None
    assert step.deviation == pytest.approx(0.5 if baseline == "step" else math.sqrt(0.5 / 6))
    for rewards in STEP:
        found = group_advantages(rewards, advantage, step)
        for reward, value in zip(rewards, found, strict=True):
            if reward is None:
                assert value is None
            elif baseline == "step":
                assert value == pytest.approx((reward - 0.5) / 0.5, rel=1e-5)
            else:
                mean = 0.5 if rewards == STEP[0] else reward
                assert value == pytest.approx((reward - mean) / math.sqrt(0.5 / 6), rel=1e-5)


def test_moments_of_parts_are_those_of_all_values() -> None:
    parts = [[0.0, 1.0, 1.0], [], [0.5], [0.25] * 4]
    every = Moments.of([value for part in parts for value in part])
    together = Moments.together([Moments.of(part) for part in parts])
    assert together.count == every.count == 8
    assert together.mean == pytest.approx(every.mean)
    assert together.deviation == pytest.approx(every.deviation)
    assert Moments.together([]) == Moments.of([])


def test_a_window_takes_the_moments_of_the_steps_in_it(tmp_path: Path) -> None:
    """A hard step after two easy ones: by its own mean nobody is to blame for a zero among zeros.
    Beyond the window nothing is read, nor by an advantage that needs none."""
    steps = {1: [1.0, 1.0], 2: [1.0, 1.0], 3: [0.0, 0.0]}
    groups = {
        step: [make_group((1,), [(2,), (3,)], rewards, prompt_id=f"0/{step}")]
        for step, rewards in steps.items()
    }
    store = Store.open(str(tmp_path))

    def blame(window: int) -> list[float]:
        advantage = ReinforcePlusPlusAdvantage(baseline="step", window=window)
        config = LearnerConfig(advantage=advantage)
        moments = baseline_moments(groups[3], store, 3, config)
        assert (moments == moments_of(groups[3], advantage)) == (window == 1)
        return list(advantages_of(groups[3], advantage, moments=moments).values())

    with pytest.raises(FileNotFoundError, match="00002"):
        blame(window=2)
    for advantage in (GrpoAdvantage(), ReinforcePlusPlusAdvantage(baseline="step")):
        record_moments(groups[1], store, 1, LearnerConfig(advantage=advantage))
    assert list(tmp_path.iterdir()) == [], "nobody asks for them"
    spanning = LearnerConfig(advantage=ReinforcePlusPlusAdvantage(baseline="step", window=2))
    record_moments(groups[2], store, 2, spanning)
    assert blame(window=1) == [0.0, 0.0]
    assert blame(window=2) == [pytest.approx(-1.0, rel=1e-5)] * 2
    with pytest.raises(FileNotFoundError, match="00001"):
        blame(window=3)
    assert baseline_moments(groups[3], store, 3, LearnerConfig()) is None


def test_moments_do_not_depend_on_the_order_of_groups() -> None:
    advantage = ReinforcePlusPlusAdvantage()
    groups = [[0.1, 0.7, 0.3], [1e-9, 1.0], [0.25] * 7]
    assert step_moments(groups, advantage) == step_moments(groups[::-1], advantage)
    assert step_moments(groups, GrpoAdvantage()) is None


def test_a_step_of_equal_rewards_teaches_nothing_and_one_of_none_divides_by_nothing() -> None:
    advantage = ReinforcePlusPlusAdvantage(baseline="step")
    step = step_moments([[1.0, 1.0], [1.0]], advantage)
    assert group_advantages([1.0, 1.0], advantage, step) == [0.0, 0.0]
    assert step_moments([[None]], advantage) is not None


def test_parts_of_a_step_are_trained_on_the_advantages_that_are_recorded() -> None:
    groups = [
        make_group((1,), [(2,), (3, 4), (5,)], [0.0, 1.0, None], prompt_id="0/0"),
        make_group((2,), [(2,), (3, 4), (5,)], [1.0, 1.0, 1.0], prompt_id="0/1"),
    ]
    advantage = ReinforcePlusPlusAdvantage(baseline="step")
    moments = moments_of(groups, advantage)
    recorded = advantages_of(groups, advantage, moments=moments)
    parts = [
        GroupPart(group=group, places=places, moments=moments)
        for group in groups
        for places in ((0,), (1, 2))
    ]
    trained = [training_set([part], advantage, TokenMean()) for part in parts]
    values = [sample.advantages[0] for data in trained for sample in data.samples]
    assert values == list(recorded.values())
    assert values == pytest.approx([-2.0, 0.5, 0.5, 0.5, 0.5], rel=1e-5)
