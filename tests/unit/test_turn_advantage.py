"""Advantages of turns, worked out by hand, and on the way to the gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from learner_factories import make_group, make_model
from pydantic import ValidationError
from turn_factories import as_episode, turn

from artifacts.records import Group, ShownPicture, pack
from flows.config.run_config import RunConfig
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner.credit import (
    AnchorStateAdvantage,
    Credit,
    TurnReturnAdvantage,
    TurnRewards,
    played,
    returns,
    token_mean,
    turn_advantages,
)
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.losses.weighted import PolicyGradientLoss
from tasks.learner.samples import TokenMean, advantages_of, training_set
from tasks.learner.trainer import LearnerRank

EXACT = 1e-12  # for epsilon: deviations here are far larger


def play(*turns: tuple[str, float]) -> TurnRewards:
    """Of turns as (state, reward)."""
    rewards = tuple(reward for _, reward in turns)
    return TurnRewards(
        reward=sum(rewards), rewards=rewards, states=tuple(state for state, _ in turns)
    )


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(own) for own in found] == [len(own) for own in expected]
    for own, wanted in zip(found, expected, strict=True):
        assert own == pytest.approx(wanted, abs=1e-9)


def test_a_turn_returns_what_is_paid_from_it_on() -> None:
    assert returns([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]
    assert returns([1.0, 0.0, 4.0], 1.0) == [5.0, 4.0, 4.0]
    assert returns([], 0.5) == []


def test_turn_returns_by_hand() -> None:
    """Returns with a half: 1.5 and 1; 0.5 and 1; 4. First turns: mean 2, deviations -.5, -1.5, 2,
    their squares' mean 6.5 / 3. Second turns agree."""
    group = [
        play(("a", 1.0), ("b", 1.0)),
        play(("a", 0.0), ("c", 1.0)),
        play(("a", 4.0)),
    ]
    deviation = (6.5 / 3) ** 0.5
    close(
        TurnReturnAdvantage(gamma=0.5, epsilon=EXACT).of_turns(group),
        [[-0.5 / deviation, 0.0], [-1.5 / deviation, 0.0], [2.0 / deviation]],
    )


def test_a_turn_that_no_sibling_has_is_compared_with_nothing() -> None:
    group = [play(("a", 0.0), ("b", 1.0)), play(("a", 0.0))]
    close(TurnReturnAdvantage(epsilon=EXACT).of_turns(group), [[1.0, 0.0], [-1.0]])


def test_anchor_states_by_hand() -> None:
    """Rewards 2 and 0: +1 and -1 for the episode. The first comes back to state a: returns with a
    half are 0.5, 1, 2 from a, b, a, and 0, 0 of the other from a, c. From a there are 0.5, 2 and 0:
    mean 5/6."""
    group = [play(("a", 0.0), ("b", 0.0), ("a", 2.0)), play(("a", 0.0), ("c", 0.0))]
    mean = 2.5 / 3
    deviation = (((0.5 - mean) ** 2 + (2 - mean) ** 2 + mean**2) / 3) ** 0.5
    first, again, other = ((value - mean) / deviation for value in (0.5, 2.0, 0.0))
    advantage = AnchorStateAdvantage(gamma=0.5, epsilon=EXACT)
    close(advantage.of_turns(group), [[1 + first, 1.0, 1 + again], [-1 + other, -1.0]])
    weighed = advantage.model_copy(update={"episode_weight": 0.5, "state_weight": 3.0})
    close(
        weighed.of_turns(group),
        [[0.5 + 3 * first, 0.5, 0.5 + 3 * again], [-0.5 + 3 * other, -0.5]],
    )


def episodes(rewards: tuple[float | None, ...] = (3.0, 1.0, None)) -> Group:
    """Three episodes of two turns each; the environment of the last failed."""
    group = make_group((1, 2), [(11, 12, 13), (14, 15), (16, 17)], list(rewards))
    paid = [((0.0, 3.0), (1, 2)), ((1.0, 0.0), (1, 1)), ((9.0, None), (1, 1))]
    responses = []
    for response, (of_turns, counts) in zip(group.responses, paid, strict=True):
        spoken = as_episode(response.generated, [((5, 6), count) for count in counts])
        assert spoken.episode is not None
        turns = tuple(turn(2, *each, said="?") for each in zip(counts, of_turns, strict=True))
        spoken = replace(spoken, episode=replace(spoken.episode, turns=turns))
        responses.append(replace(response, generated=spoken))
    return replace(group, responses=tuple(responses))


def test_what_the_verdict_adds_is_paid_for_the_last_turn() -> None:
    first, second, last = (response.generated for response in episodes().responses)
    assert played(first, 3.0).rewards == (0.0, 3.0)
    assert played(second, 0.5).rewards == (1.0, -0.5)
    assert played(last, 0.0).rewards == (9.0, -9.0)
    plain = make_group((1,), [(2,)], [1.0]).responses[0].generated
    assert played(plain, 0.7) == TurnRewards(reward=0.7, rewards=(0.7,), states=("",))


def test_a_turn_in_which_nothing_was_sampled_is_none() -> None:
    """As after an observation that left no room: the last action answers for what is lost there."""
    group = episodes((3.0, 1.0, -2.0))
    last = group.responses[2].generated
    assert last.episode is not None
    turns = (turn(2, 2, reward=9.0), turn(2, 0, reward=None))
    cut = replace(
        last,
        token_ids=(5, 6, 16, 17, 5, 6),
        logprobs=(0.0,) * 6,
        episode=replace(last.episode, turns=turns),
    )
    assert played(cut, -2.0).rewards == (-2.0,)
    responses = (*group.responses[:2], replace(group.responses[2], generated=cut))
    found = turn_advantages(
        replace(group, responses=responses), [3.0, 1.0, -2.0], TurnReturnAdvantage(epsilon=EXACT)
    )
    # first turns return 3, 1, -2; second ones 3, 0, and the silent one is not compared with
    deviation = ((7 / 3) ** 2 + (1 / 3) ** 2 + (8 / 3) ** 2) / 3
    assert found == [
        pytest.approx((7 / 3 / deviation**0.5, 1.0)),
        pytest.approx((1 / 3 / deviation**0.5, -1.0)),
        pytest.approx((-8 / 3 / deviation**0.5, 0.0)),
    ]


@pytest.mark.parametrize("credit", [TurnReturnAdvantage(), AnchorStateAdvantage()])
def test_failures_are_in_no_comparison_and_single_turns_are_compared_as_wholes(
    credit: Credit,
) -> None:
    group = episodes()
    found = turn_advantages(group, [3.0, 1.0, None], credit)
    alone = replace(group, responses=group.responses[:2])
    assert found == [*turn_advantages(alone, [3.0, 1.0], credit), None]
    single = make_group((1,), [(2,), (3, 4)], [1.0, 0.0])
    both = 1 if isinstance(credit, TurnReturnAdvantage) else 2
    one, other = turn_advantages(single, [1.0, 0.0], credit)
    assert one == pytest.approx((both,), rel=1e-5)
    assert other == pytest.approx((-both,), rel=1e-5)


def test_equal_rewards_may_be_earned_differently_and_agreeing_turns_teach_nothing() -> None:
    """Both 3 in the end, the second at once."""
    group = episodes((3.0, 3.0, None))
    assert LearnerConfig(advantage=TurnReturnAdvantage()).flat_groups_cost
    data = training_set([group], TurnReturnAdvantage(epsilon=EXACT), TokenMean())
    assert [sample.advantages for sample in data.samples] == [
        pytest.approx((0.0, 1.0)),
        pytest.approx((0.0, -1.0)),
    ]
    assert data.num_groups_flat == 0
    same = replace(group, responses=(group.responses[0], replace(group.responses[0])))
    data = training_set([same], TurnReturnAdvantage(), TokenMean())
    assert [sample.advantages for sample in data.samples] == [(0.0, 0.0)] * 2
    assert data.num_groups_flat == 1


def test_the_record_has_the_mean_over_sampled_tokens() -> None:
    assert token_mean((0.1, 0.1), (range(2, 5), range(9, 11))) == 0.1
    assert token_mean((4.0, 1.0), (range(2), range(7, 8))) == 3.0
    credit = TurnReturnAdvantage(epsilon=EXACT)
    group = episodes()
    values = [own for own in turn_advantages(group, [3.0, 1.0, None], credit) if own is not None]
    expected = {
        "0/0:0": (values[0][0] + 2 * values[0][1]) / 3,
        "0/0:1": (values[1][0] + values[1][1]) / 2,
    }
    assert advantages_of([group], credit) == pytest.approx(expected)


def test_every_turn_has_its_own_weight_in_the_gradient(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = make_model(tmp_path_factory.mktemp("model"))
    credit = TurnReturnAdvantage()
    config = LearnerConfig(compute="fp32", advantage=credit, loss=PolicyGradientLoss())
    rank = LearnerRank(config, path, 0, 1)
    rank.accumulate(pack((episodes(),)))
    model = naive_model(path)
    for sample in training_set([episodes()], credit, TokenMean()).samples:
        logp, _ = naive_logp(model, sample)
        first, second = sample.advantages
        assert first != second
        (-first * logp[0] - second * logp[1:].sum()).backward()
    for name, parameter in model.named_parameters():
        found = rank._policy.parameters.gradient(name)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=2e-6)


def test_they_are_chosen_by_kind() -> None:
    values = {"preset": "tiny", "learner": {"advantage": {"kind": "anchor_states", "gamma": 0.9}}}
    assert RunConfig.model_validate(values).learner.advantage == AnchorStateAdvantage(gamma=0.9)
    with pytest.raises(ValidationError, match="gamma"):
        TurnReturnAdvantage(gamma=1.5)


def test_what_is_shown_is_part_of_a_state() -> None:
    """Also where the history is rewritten, and a turn has the pictures of those before."""
    generated = episodes((3.0, 1.0, -2.0)).responses[0].generated
    assert generated.episode is not None
    shown = {name: ShownPicture(content=name, begin=0, rows=1, columns=1) for name in "ab"}
    first, second = turn(2, 1, said="?"), replace(turn(3, 1, said="?"), starts_over=True)

    def states(one: str, *later: str) -> tuple[str, ...]:
        turns = (
            replace(first, pictures=(shown[one],)),
            replace(second, pictures=tuple(shown[each] for each in (one, *later))),
        )
        episode = replace(generated.episode, turns=turns)
        return played(replace(generated, episode=episode), 0.0).states

    assert states("a", "b") == ("?\na", "?\nb")
    assert states("a", "a") == ("?\na", "?\na")
    assert states("b") == ("?\nb", "?")
