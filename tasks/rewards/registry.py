"""The kinds of rewards, and the reward of every domain.

    {"add": MathAnswerConfig(), "*": CustomConfig(...)}
    ─▶ build_rewards ─▶ Rewards.reward_of(prompt.domain)

A new reward is a file with its configuration and its scorer, and one line in the union
RewardConfig.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeVar

from pydantic import Field

from artifacts.records import Generated, Outcome, Prompt, Score
from tasks.rewards.base import Reward, Verdict, stamp
from tasks.rewards.custom import CustomConfig
from tasks.rewards.episode import EpisodeRewardConfig
from tasks.rewards.judges.reward import JudgeConfig
from tasks.rewards.maths.math_answer import MathAnswerConfig, WorkedAnswerConfig
from tasks.rewards.programs.adaptive_timeout import Anchor, is_ended_early, merged, observed
from tasks.rewards.programs.code_tests import CodeTestsConfig
from tasks.rewards.reasoning_gym_score import ReasoningGymRewardConfig
from tasks.rewards.service import ServiceConfig

RewardConfig = Annotated[
    MathAnswerConfig  # mathematical answers, by value
    | WorkedAnswerConfig  # the same, and the lines of their working
    | CodeTestsConfig  # programs, by their tests
    | ReasoningGymRewardConfig  # reasoning-gym's own scorers
    | CustomConfig  # a function of the user's
    | EpisodeRewardConfig  # what the environment of an episode pays
    | JudgeConfig  # a second model
    | ServiceConfig,  # a service elsewhere, over HTTP
    Field(discriminator="kind"),
]

ANY_DOMAIN = "*"
Found = TypeVar("Found")


class Rewards:
    """The rewards of a run by domain, which check its prompts. Domains with equal configurations
    share one reward."""

    def __init__(self, by_domain: Mapping[str, Reward]) -> None:
        self._by_domain = dict(by_domain)

    def check(self, prompt: Prompt) -> None:
        """Check that a prompt can be scored; ValueError for an unknown domain or unusable gold."""
        self.reward_of(prompt.domain).check_gold(prompt.gold)

    def reward_of(self, domain: str) -> Reward:
        """The reward of a domain, else that of "*"; ValueError if there is neither."""
        return config_of(self._by_domain, domain)

    def close(self) -> None:
        """End every worker process."""
        for reward in dict.fromkeys(self._by_domain.values()):
            reward.close()


def score_with(reward: Reward, prompt: Prompt, generated: Generated) -> Score:
    """Score a response; an aborted one gets no verdict."""
    if generated.finish_reason == "aborted":
        verdict = Verdict(reward=None, outcome=Outcome.ABORTED, detail="aborted")
        return stamp(verdict, prompt, generated, scorer=reward.name, started_s=time.time())
    return reward.score(prompt, generated)


def config_of(by_domain: Mapping[str, Found], domain: str) -> Found:
    """The entry of a domain, else that of "*"; ValueError if there is neither."""
    found = by_domain.get(domain) or by_domain.get(ANY_DOMAIN)
    if found is None:
        known = ", ".join(sorted(by_domain))
        raise ValueError(
            f"every domain needs a reward, got {domain!r} with rewards for {known}; add it or a"
            " reward for '*'"
        )
    return found


def timeouts_of(
    configs: Mapping[str, RewardConfig], scored: Iterable[tuple[str, Score]]
) -> dict[str, Anchor]:
    """Collect the running times of test cases from the scores of programs, by key of the test case.
    scored: pairs (domain, score)."""
    anchors: dict[str, Anchor] = {}
    for domain, score in scored:
        programs = config_of(configs, domain)
        if isinstance(programs, CodeTestsConfig):
            anchors = merged(anchors, observed(programs.timeout, (score.cases,)))
    return anchors


def is_early_killed(configs: Mapping[str, RewardConfig], domain: str, score: Score) -> bool:
    """True if a program was killed before the longest limit, so that it may have been right."""
    programs = config_of(configs, domain)
    return isinstance(programs, CodeTestsConfig) and is_ended_early(programs.timeout, score.cases)


def build_rewards(configs: Mapping[str, RewardConfig]) -> Rewards:
    """Build the rewards of a run. configs: by domain; "*" stands for every domain not named. Raises
    ValueError if `configs` is empty, for a bad custom path, or for a sandbox that this machine does
    not allow."""
    if not configs:
        raise ValueError("a run needs at least one reward, got none; add one for '*'")
    built: dict[RewardConfig, Reward] = {}
    try:
        for config in configs.values():
            if config not in built:
                built[config] = config.build_reward()
    except ValueError:
        for reward in built.values():
            reward.close()
        raise
    return Rewards({domain: built[config] for domain, config in configs.items()})
