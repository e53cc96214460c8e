"""The reward of an episode: the discounted sum of the rewards that its environment paid by turn.

The episode's ending decides the outcome. If the environment failed, there is no verdict, and the
response does not enter its group's mean. If a bound cut the episode, the reward stays as it is and
the outcome is TRUNCATED.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.episodes import Ending, Episode
from artifacts.records import Generated, Outcome, Prompt, Score
from tasks.rewards.base import Reward, Verdict, infra, paid, stamp


class EpisodeRewardConfig(FrozenConfig):
    """Sum the rewards that an episode's environment paid by turn."""

    kind: Literal["episode"] = Field(
        "episode", description="Chooses what the environment of the domain pays."
    )
    discount: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "What a turn's reward is worth one turn later; below 1 the same success is worth more"
            " in fewer turns."
        ),
    )

    def build_reward(self) -> Reward:
        """The reward of this configuration."""
        return EpisodeReward(self)


@dataclass(frozen=True)
class EpisodeReward(Reward):
    """Scores episodes from their records alone."""

    name = "episode"
    config: EpisodeRewardConfig

    def score(self, prompt: Prompt, generated: Generated) -> Score:
        """Score an episode; the detail is the ending."""
        started_s = time.time()
        verdict = self._verdict(generated.episode)
        score = stamp(verdict, prompt, generated, scorer=self.name, started_s=started_s)
        return replace(score, outcome=verdict.outcome, detail=verdict.detail)

    def _verdict(self, episode: Episode | None) -> Verdict:
        if episode is None or episode.ending is None:
            return infra("this response is no whole episode")
        if episode.ending.is_failure:
            return infra(f"{episode.ending}: {episode.detail}")
        by_turn = [turn.reward or 0.0 for turn in episode.turns]
        reward = sum(each * self.config.discount**number for number, each in enumerate(by_turn))
        verdict = paid(reward, str(episode.ending), by="the environment")
        if episode.ending is Ending.TERMINATED or verdict.reward is None:
            return verdict
        return replace(verdict, outcome=Outcome.TRUNCATED)
