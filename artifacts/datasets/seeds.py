"""Rows that are seeds of an environment's episodes. A row has no messages: the prompt before an
episode belongs to the environment."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Dataset, Row

LARGEST_SEED = 2**31


class SeedsConfig(FrozenConfig):
    """Episodes of an environment."""

    kind: Literal["seeds"] = Field(
        "seeds", description="Chooses episodes of an environment, a seed each."
    )
    domain: str = Field(
        ...,
        min_length=1,
        description="Domain whose episodes are played: a name among `environments`.",
    )
    num_prompts: int = Field(4096, ge=1, le=2**20, description="Episodes to train on.")
    heldout_prompts: int = Field(
        256, ge=0, le=2**20, description="Episodes to evaluate on; none of them is trained."
    )

    def load(self, seed: int) -> Dataset:
        """Draw the episodes' seeds: even ones to train on, odd ones held out, so that no seed is on
        both sides. The held-out ones do not depend on `seed`: they are the same for every run."""

        def side(key: str, count: int, parity: int) -> tuple[Row, ...]:
            rng, seeds = random.Random(f"{key}/{self.domain}"), dict[int, None]()
            while len(seeds) < count:
                seeds[2 * rng.randrange(LARGEST_SEED // 2) + parity] = None
            return tuple(
                Row(
                    domain=self.domain,
                    messages=(),
                    gold=str(episode),
                    text=f"{self.domain}, episode {episode}",
                )
                for episode in seeds
            )

        return Dataset(
            name="seeds",
            rows=side(f"{seed}/seeds/rows", self.num_prompts, 0),
            heldout=side("seeds/heldout", self.heldout_prompts, 1),
        )
