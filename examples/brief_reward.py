"""A reward: the gold answer must be among the first characters of the response.

Its configuration builds it; `score` judges one finished response. What a model wrote is never an
error: it is right or wrong, with a reason in a few words.
"""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.records import Generated, Prompt, Score
from tasks.rewards.base import Reward, right, stamp, wrong


class BriefConfig(BaseModel):
    """Pay for answers that come early."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["brief"] = Field("brief", description="Pays for answers that come early.")
    max_chars: int = Field(40, ge=1, description="Characters within which the answer must be.")

    def build_reward(self) -> Reward:
        return BriefReward(self)


class BriefReward(Reward):
    """Scores by the text alone, in the process that asks."""

    name = "brief"

    def __init__(self, config: BriefConfig) -> None:
        self._config = config

    def score(self, prompt: Prompt, generated: Generated) -> Score:
        started_s = time.time()
        is_there = prompt.gold in generated.text[: self._config.max_chars]
        verdict = right("found") if is_there else wrong("not_found")
        return stamp(verdict, prompt, generated, scorer=self.name, started_s=started_s)
