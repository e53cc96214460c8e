"""Advantages and samples by table."""

from __future__ import annotations

import math

import pytest
from learner_factories import make_group

from tasks.learner.advantage import DrGrpoAdvantage, GrpoAdvantage, group_advantages
from tasks.learner.normalisation import ConstantLength, SequenceMean, TokenMean
from tasks.learner.samples import training_set


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
    assert [sample.advantage for sample in data.samples] == [0.5]
    assert data.num_responses_excluded == 1


def test_groups_without_spread_are_counted() -> None:
    groups = [
        make_group((1,), [(2,), (3,)], rewards) for rewards in ([1.0, 1.0], [0.0, 1.0], [None, 1.0])
    ]
    assert training_set(groups, GrpoAdvantage(), TokenMean()).num_groups_flat == 2
