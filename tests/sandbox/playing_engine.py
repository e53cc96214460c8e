"""An engine's process that plays episodes until it is killed: `python playing_engine.py FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "unit"), str(HERE.parents[1])]

from episode_factories import EOS, GAME, PACE, TOKENIZER, Watched, episode  # noqa: E402

from artifacts.attempt_log import TurnLog  # noqa: E402
from artifacts.records import Generated  # noqa: E402
from research.kills.delayed import DelayedConfig  # noqa: E402
from tasks.environments.config import EnvironmentProcessConfig, EpisodeConfig  # noqa: E402
from tasks.environments.episodes.bridge import make_bridge  # noqa: E402
from tasks.environments.episodes.episode_replica import EpisodeReplica  # noqa: E402
from tasks.environments.pools.pool import EnvironmentPool  # noqa: E402

NUM_EPISODES = 6
SLOW = DelayedConfig(environment=GAME, mean_s=0.3)
PATIENT = EnvironmentProcessConfig(num_hosts=NUM_EPISODES, reset_s=120.0, step_s=120.0)


async def play(folder: Path, known: dict[str, Generated], name: str) -> dict[str, Generated]:
    """Play the episodes, those that are known from where they were left."""
    replica = EpisodeReplica(
        Watched(PACE, name),
        EnvironmentPool(PATIENT, (SLOW,)),
        environments={"guess": SLOW},
        bridges={"guess": make_bridge(TOKENIZER, (EOS,), SLOW.head(), "tiny")},
        config=EpisodeConfig(max_turn_tokens=8, hosts=PATIENT),
        max_model_len=512,
        log=TurnLog(folder, name),
    )
    requests = []
    for index in range(NUM_EPISODES):
        kept = known.get(f"0/1:{index}")
        requests.append(
            episode(index)
            if kept is None
            else episode(
                index,
                kept_tokens=kept.token_ids,
                kept_logprobs=kept.logprobs,
                kept_versions=kept.versions,
                kept_episode=kept.episode,
            )
        )
    await replica.submit(requests)
    found: list[Generated] = []
    async with asyncio.timeout(500):
        while len(found) < NUM_EPISODES:
            found += await replica.collect(100.0)
    replica.close()
    return {generated.response_id: generated for generated in found}


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), {}, "engine-0"))
