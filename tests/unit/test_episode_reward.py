"""An episode is worth what its environment paid, and how it ended decides what that means."""

from __future__ import annotations

import math

import pytest
from record_factories import make_generated

from artifacts.episodes import Ending, Episode, Turn
from artifacts.records import Outcome, Prompt, Score
from tasks.rewards.episode import EpisodeRewardConfig

PROMPT = Prompt(
    prompt_id="0/1", domain="guess", token_ids=(1,), gold="4", text="guess", episode_seed=4
)


def turn(reward: float | None) -> Turn:
    return Turn(
        num_given=1,
        num_sampled=1,
        observation="h",
        action="5",
        reward=reward,
        asked_s=0.0,
        acted_s=1.0,
        answered_s=2.0,
    )


def score(
    ending: Ending | None, *rewards: float | None, discount: float = 1.0, detail: str = ""
) -> Score:
    generated = make_generated(
        index=3,
        token_ids=(5, 5) * len(rewards),
        finish_reason="stop" if ending is Ending.TERMINATED else "length",
        episode=Episode(turns=tuple(map(turn, rewards)), ending=ending, detail=detail),
    )
    config = EpisodeRewardConfig(discount=discount)
    return config.build_reward().score(PROMPT, generated)


@pytest.mark.parametrize(
    ("ending", "rewards", "reward", "outcome"),
    [
        (Ending.TERMINATED, (0.0, 1.0), 1.0, Outcome.OK),
        (Ending.TERMINATED, (0.5, 0.25), 0.75, Outcome.OK),
        (Ending.TERMINATED, (0.0, 0.0), 0.0, Outcome.WRONG),
        (Ending.TERMINATED, (-1.0,), -1.0, Outcome.WRONG),
        (Ending.TURNS, (0.0, 0.0), 0.0, Outcome.TRUNCATED),
        (Ending.TOKENS, (0.5, 0.0), 0.5, Outcome.TRUNCATED),
        (Ending.TIME, (0.0,), 0.0, Outcome.TRUNCATED),
        (Ending.TRUNCATED, (1.0,), 1.0, Outcome.TRUNCATED),
    ],
)
def test_the_turns_rewards_add_up_and_the_ending_is_the_detail(
    ending: Ending, rewards: tuple[float, ...], reward: float, outcome: Outcome
) -> None:
    scored = score(ending, *rewards)
    assert (scored.reward, scored.outcome, scored.detail) == (reward, outcome, str(ending))


def test_a_later_reward_is_worth_less_where_it_is_discounted() -> None:
    assert score(Ending.TERMINATED, 0.0, 0.0, 1.0, discount=0.5).reward == 0.25


@pytest.mark.parametrize("ending", [Ending.CRASHED, Ending.UNANSWERED])
def test_an_environment_that_failed_is_no_verdict_on_the_model(ending: Ending) -> None:
    scored = score(ending, 1.0, detail="it broke")
    assert (scored.reward, scored.outcome) == (None, Outcome.INFRA)
    assert scored.detail == f"{ending}: it broke"


def test_what_is_no_episode_or_pays_no_number_has_no_verdict() -> None:
    assert score(None, 1.0).outcome is Outcome.INFRA
    assert score(Ending.TERMINATED, math.inf).outcome is Outcome.INFRA
