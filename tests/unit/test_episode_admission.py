"""How many episodes there are and how many turns an engine takes are two limits: while an
environment thinks, its episode is in nobody's slot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from episode_factories import PACE, LocalHosts, Stage, episode, on_stage

from tasks.environments.base import EnvironmentSettings

NUM_EPISODES = 8
THINKS_S = 0.2  # several times as long as a turn of the engine


@dataclass
class Places(LocalHosts):
    """So many environments at a time, as a pool of processes has them; others wait in order."""

    num_places: int = 1
    most_open: int = 0
    waiting: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = asyncio.Semaphore(self.num_places)

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        await self.waiting.acquire()
        observation = await super().reset(episode_id, settings, seed, state)
        self.most_open = max(self.most_open, len(self.open))
        return observation

    async def end(self, episode_id: str) -> None:
        if episode_id in self.open:
            self.waiting.release()
        await super().end(episode_id)


def played(num_places: int, num_slots: int) -> tuple[float, int, list[int]]:
    """Seconds for all episodes, how many there were at most, and how many turns the engine had
    every now and then."""
    hosts = Places(step_s=lambda episode_id, call: THINKS_S, num_places=num_places)
    inside: list[int] = []

    async def play(stage: Stage) -> float:
        await stage.replica.submit([episode(index) for index in range(NUM_EPISODES)])
        num_done = 0
        while num_done < NUM_EPISODES:
            num_done += len(await stage.replica.collect(0.01))
            inside.append(len((await stage.inner.stats()).progress))
        return asyncio.get_running_loop().time()

    seconds = on_stage(play, hosts, pace=PACE.model_copy(update={"max_batch": num_slots}))
    return seconds, hosts.most_open, inside


def test_the_places_of_environments_bound_episodes_whatever_the_engine_has_room_for() -> None:
    _, most_open, inside = played(num_places=3, num_slots=NUM_EPISODES)
    assert most_open == 3
    assert max(inside) <= 3


def test_more_episodes_than_slots_keep_an_engine_busy() -> None:
    """One slot: with one episode it idles while the environment thinks, with eight it does not."""
    alone_s, _, _ = played(num_places=1, num_slots=1)
    full_s, most_open, _ = played(num_places=NUM_EPISODES, num_slots=1)
    assert most_open == NUM_EPISODES
    assert full_s < alone_s / 3
