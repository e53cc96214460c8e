"""No number from outside reaches training that its squares and sums could not bear."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_factories import make_group
from record_factories import make_generated

from artifacts.episodes import Ending, Episode, Turn
from artifacts.records import Outcome, Prompt
from tasks.learner.advantage import CustomAdvantage
from tasks.learner.credit import Credit
from tasks.learner.dealing import as_part
from tasks.learner.overlong import SoftPunishment
from tasks.learner.samples import TokenMean, moments_of, training_set
from tasks.rewards.base import LARGEST_REWARD, Verdict, checked_reward, paid, right, stamp
from tasks.rewards.episode import EpisodeRewardConfig
from tasks.rewards.scoring import RewardBroken, check_infra

PROMPT = Prompt(prompt_id="0/1", domain="own", token_ids=(1,), gold="", text="q")
REWARDS = st.lists(st.floats(-LARGEST_REWARD, LARGEST_REWARD), min_size=2, max_size=6)
PUNISHED = SoftPunishment(max_tokens=1, buffer_tokens=1, penalty=LARGEST_REWARD)
OF_ROLLFLOW = [kind for kind in get_args(Credit) if kind is not CustomAdvantage]


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0),
        (-1e6, -1e6),
        (5e-324, 5e-324),
        (numpy.float64(0.5), 0.5),
        (10**6, 1e6),
        (10**6 + 1, None),
        (-1.0000001e6, None),
        (1e200, None),
        (1e308, None),
        (10**400, None),
        (math.inf, None),
        (math.nan, None),
        (True, None),
        ("1", None),
        (None, None),
        ([1.0], None),
    ],
)
def test_only_a_finite_number_within_the_bound_is_a_reward(
    value: object, reward: float | None
) -> None:
    verdict = paid(value, "own", by="own:f")
    assert verdict.reward == reward
    assert (verdict.outcome is Outcome.INFRA) == (reward is None)
    if reward is None:
        with pytest.raises(ValueError, match=r"a reward must be a finite number .*; scale it"):
            checked_reward(value)
        assert verdict.detail.startswith("own:f: a reward must be a finite number")


def test_no_reward_of_any_kind_is_stamped_beyond_the_bound() -> None:
    beyond = Verdict(reward=1e200, outcome=Outcome.OK, detail="")
    for verdict, outcome in ((beyond, Outcome.INFRA), (right(""), Outcome.OK)):
        score = stamp(verdict, PROMPT, make_generated(), scorer="own", started_s=0.0)
        assert (score.outcome, score.reward is None) == (outcome, outcome is Outcome.INFRA)


def test_an_error_of_a_reward_is_told_with_its_path_once_and_unchanged() -> None:
    path = "custom:/mine/my_reward.py:reward"
    failed = Verdict(reward=None, outcome=Outcome.INFRA, detail=f"{path} failed: KeyError: 'gold'")
    cut = make_generated(finish_reason="length")
    scores = [stamp(failed, PROMPT, cut, scorer=path, started_s=0.0) for _ in range(8)]
    assert scores[0].detail == failed.detail
    round_plan = SimpleNamespace(prompts=(1,), launch_per_prompt=8, step=3)
    inputs = SimpleNamespace(plan=round_plan, max_infra_fraction=0.25)
    with pytest.raises(RewardBroken, match=r"step 3 have none \(custom:") as caught:
        check_infra(inputs, scores)  # type: ignore[arg-type]
    assert str(caught.value).count("my_reward.py") == 1


@pytest.mark.parametrize("rewards", [(1e6, 1e6), (-1e308, -1e308), (1e308, 1e308)])
def test_turns_that_sum_up_to_more_have_no_verdict(rewards: tuple[float, float]) -> None:
    turn = Turn(num_given=1, num_sampled=1, observation="", action="", reward=0.0, asked_s=0.0,
        acted_s=0.0, answered_s=0.0)  # fmt: skip
    episode = Episode(
        turns=tuple(replace(turn, reward=reward) for reward in rewards), ending=Ending.TURNS
    )
    generated = make_generated(token_ids=(5, 5) * 2, episode=episode)
    score = EpisodeRewardConfig().build_reward().score(PROMPT, generated)
    assert (score.outcome, score.reward) == (Outcome.INFRA, None)
    assert "the environment: a reward must be a finite number" in score.detail
    one = replace(episode, turns=(replace(turn, reward=1.0),))
    score = EpisodeRewardConfig().build_reward().score(PROMPT, replace(generated, episode=one))
    assert (score.outcome, score.reward) == (Outcome.TRUNCATED, 1.0)


@pytest.mark.parametrize("kind", OF_ROLLFLOW)
@given(rewards=REWARDS)
def test_squares_and_sums_of_advantages_are_finite_in_single_precision(
    kind: type[Credit], rewards: list[float]
) -> None:
    group = make_group((1,), [(2, 3)] * len(rewards), list(rewards))
    credit = kind()
    part = replace(as_part(group), moments=moments_of([group], credit, PUNISHED))
    samples = training_set([part], credit, TokenMean(), PUNISHED).samples
    advantages = torch.tensor([value for sample in samples for value in sample.advantages])
    assert advantages.numel()
    assert (advantages.square().sum() * 1e9).isfinite()


@pytest.mark.parametrize("reward", [1e200, -1e308, math.nan])
def test_a_record_with_a_reward_beyond_the_bound_is_a_sentence(reward: float) -> None:
    group = make_group((1,), [(2,), (3,)], [0.0, reward])
    for credit in (kind() for kind in OF_ROLLFLOW):
        with pytest.raises(ValueError, match=r"records of this step .* begin a new run"):
            training_set([group], credit, TokenMean())
