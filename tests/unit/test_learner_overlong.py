"""What training makes of responses that are too long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learner_factories import make_group

from artifacts.records import Group
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from tasks.learner.advantage import DrGrpoAdvantage
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.overlong import MaskTruncated, Overlong, SoftPunishment, TrainOverlong
from tasks.learner.samples import TokenMean, TrainingSet, training_set

SOFT = SoftPunishment(max_tokens=10, buffer_tokens=4)


def group(lengths: list[int], rewards: list[float | None], longest: int = 10) -> Group:
    """Responses of these lengths, the longest ones cut by the bound."""
    made = make_group((1, 2), [(3,) * length for length in lengths], rewards)
    responses = (
        (
            replace(one, generated=replace(one.generated, finish_reason="length"))
            if len(one.generated.token_ids) == longest
            else one
        )
        for one in made.responses
    )
    return replace(made, responses=tuple(responses))


def trained(of: Group, overlong: Overlong) -> TrainingSet:
    return training_set([of], DrGrpoAdvantage(), TokenMean(), overlong)


@pytest.mark.parametrize(
    ("num_tokens", "punishment"), [(1, 0.0), (6, 0.0), (7, 0.25), (9, 0.75), (10, 1.0), (14, 1.0)]
)
def test_the_punishment_grows_over_the_buffer_and_ends_there(
    num_tokens: int, punishment: float
) -> None:
    generated = group([num_tokens], [1.0]).responses[0].generated
    assert SOFT.shaped(1.0, generated) == 1.0 - punishment
    assert SOFT.model_copy(update={"penalty": 0.5}).shaped(0.0, generated) == -0.5 * punishment


def test_a_punished_group_of_equal_verdicts_prefers_short_answers() -> None:
    found = trained(group([3, 8, 10], [1.0, 1.0, None]), SOFT)
    assert [sample.advantages[0] for sample in found.samples] == [0.25, -0.25]
    assert (found.num_groups_flat, found.num_responses_excluded) == (0, 1)


def test_a_masked_response_is_in_the_mean_but_neither_in_the_loss_nor_in_its_divisor() -> None:
    found = trained(group([3, 5, 10], [1.0, 0.5, 0.0]), MaskTruncated())
    assert [sample.advantages[0] for sample in found.samples] == [0.5, 0.0]
    assert (found.normaliser, found.num_responses_masked, found.num_responses_excluded) == (8, 1, 0)


def test_a_group_of_nothing_but_truncated_responses_adds_nothing() -> None:
    found = trained(group([10, 10], [0.0, 1.0]), MaskTruncated())
    assert (found.samples, found.normaliser, found.num_responses_masked) == ((), 0.0, 2)


def test_by_default_truncated_responses_are_trained_on_their_verdict() -> None:
    of = group([3, 10], [1.0, 0.0])
    assert trained(of, TrainOverlong()) == training_set([of], DrGrpoAdvantage(), TokenMean())
    assert len(trained(of, TrainOverlong()).samples) == 2


def test_groups_of_equal_verdicts_cost_the_learner_something_under_a_punishment_or_a_kl_term() -> (
    None
):
    assert not LearnerConfig().flat_groups_cost
    assert LearnerConfig(overlong=SOFT).flat_groups_cost
    assert LearnerConfig(kl_coefficient=0.1).flat_groups_cost


def test_a_punishment_beyond_the_bound_on_responses_is_refused() -> None:
    def values(max_tokens: int) -> dict[str, object]:
        changes = {"kind": "soft", "max_tokens": max_tokens, "buffer_tokens": 32}
        return assemble(
            "tiny", "", [f"learner.overlong.{name}={value}" for name, value in changes.items()]
        )

    assert RunConfig.model_validate(values(128)).learner.flat_groups_cost
    with pytest.raises(
        ValueError,
        match=(
            r"learner\.overlong\.max_tokens must be at most sampling\.max_response_tokens \(128\),"
            r" got 129"
        ),
    ):
        RunConfig.model_validate(values(129))
