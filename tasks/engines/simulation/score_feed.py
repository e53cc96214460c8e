"""The simulated reward: verdicts that take time and sometimes cannot be reached, drawn from a seed
and the response's name. The ScoreFeed that goes with `replica.SimulatedEngine`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.records import Generated, Outcome, Score
from tasks.engines.mailbox import Mailbox
from tasks.scheduling.prompt_stream import derive_seed


class SimulatedRewardConfig(FrozenConfig):
    """How long simulated scoring takes, and with what verdicts it ends."""

    median_s: float = Field(
        0.5, ge=0, description="Median time from a finished response to its verdict, seconds."
    )
    sigma: float = Field(0.8, ge=0, description="Standard deviation of the logarithm of that time.")
    longest_s: float = Field(30.0, ge=0, description="Hard limit of that time, seconds.")
    ok_share: float = Field(
        0.5, ge=0, le=1, description="Share of the verdicts that are OK; the others are WRONG."
    )
    prompt_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "How much a prompt's responses are right or wrong together: the correlation of two of"
            " them."
        ),
    )
    infra_share: float = Field(
        0.0, ge=0, le=1, description="Share of the responses for which no verdict can be reached."
    )
    seed: int = Field(0, ge=0, description="Seed of all verdicts.")


class SimulatedFeed:
    """Scores every response independently, as if each had a worker of its own."""

    def __init__(self, config: SimulatedRewardConfig) -> None:
        self._config = config
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        loop = asyncio.get_running_loop()
        for response in generated:
            score = self._score(response, loop.time())
            loop.call_at(score.finished_s, self._scores.put, score)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)

    def _score(self, generated: Generated, now_s: float) -> Score:
        config = self._config
        random = np.random.default_rng(
            derive_seed(config.seed, "score", generated.prompt_id, generated.index)
        )
        took_s = min(
            config.median_s * float(np.exp(config.sigma * random.standard_normal())),
            config.longest_s,
        )
        is_ok = random.random() < self._right_share(generated.prompt_id)
        is_infra = random.random() < config.infra_share
        verdict = Outcome.OK if is_ok else Outcome.WRONG
        return Score(
            prompt_id=generated.prompt_id,
            index=generated.index,
            reward=None if is_infra else float(is_ok),
            outcome=Outcome.INFRA if is_infra else verdict,
            detail="simulated",
            scorer="simulated",
            started_s=now_s,
            finished_s=now_s + took_s,
        )

    def _right_share(self, prompt_id: str) -> float:
        """The probability that a response to this prompt is right, drawn from a beta distribution;
        the sum of its parameters gives the correlation `prompt_share`."""
        config = self._config
        if not (config.prompt_share and 0 < config.ok_share < 1):
            return config.ok_share
        spread = 1 / config.prompt_share - 1
        random = np.random.default_rng(derive_seed(config.seed, "right share", prompt_id))
        return float(random.beta(config.ok_share * spread, (1 - config.ok_share) * spread))
