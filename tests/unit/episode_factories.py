"""Episodes without processes: a game in the event loop, and an engine that says what it is told."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from artifacts.attempt_log import TurnLog
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Generated, Prompt, Request, Score
from tasks.engines.mailbox import Mailbox
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.base import Environment, EnvironmentFailed, EnvironmentSettings, Transition
from tasks.environments.config import EpisodeConfig
from tasks.environments.episodes.bridge import make_bridge
from tasks.environments.episodes.episode_replica import EpisodeReplica
from tasks.environments.games.guess import GuessConfig
from tasks.rewards.episode import EpisodeReward, EpisodeRewardConfig

Result = TypeVar("Result")

TOKENIZER = character_tokenizer()
EOS = int(TOKENIZER.eos_token_id)
GAME = GuessConfig(style="terse", largest=999, max_turns=6)
TOKEN_S = 0.01
PACE = SimulatedEngineConfig(step_s=TOKEN_S, step_s_per_sequence=0.0, prefill_s_per_token=0.0)


@dataclass(frozen=True, slots=True)
class GuessWriter:
    """Says a number that the request's seed and the place in its episode give, and an end token;
    every fifth is too long."""

    def num_tokens(self, request: Request, noise: int) -> int:
        return len(self._write(request, noise))

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return self._write(request, noise)[:num_tokens]

    def text(self, tokens: tuple[int, ...]) -> str:
        return str(TOKENIZER.decode(tokens, skip_special_tokens=True))

    def _write(self, request: Request, noise: int) -> tuple[int, ...]:
        draws = random.Random(f"{noise}/{len(request.prompt_tokens)}")
        is_long = draws.random() < 0.2
        said = "1" * 9 if is_long else str(draws.randint(100, 999))
        return (*TOKENIZER.encode(said), EOS)


class EpisodeFeed:
    """Scores finished episodes at once, by the reward `episode`."""

    def __init__(self) -> None:
        self._reward = EpisodeReward(EpisodeRewardConfig())
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        for response in generated:
            prompt = Prompt(
                prompt_id=response.prompt_id, domain="guess", token_ids=(), gold="", text=""
            )
            self._scores.put(self._reward.score(prompt, response))

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)


@dataclass
class LocalHosts:
    """Environments in the event loop. `step_s` says how long a call takes, of an episode and the
    number of its call, the reset's being 0; it may raise EnvironmentFailed."""

    step_s: Callable[[str, int], float] = lambda episode_id, call: 0.05
    build: Callable[[EnvironmentSettings], Environment] = lambda settings: settings.build()
    open: dict[str, Environment] = field(default_factory=dict)
    is_warm: bool = False
    is_closed: bool = False
    restores: bool = False  # whether environments are pickled after each step
    _calls: dict[str, int] = field(default_factory=dict)

    async def warm(self) -> None:
        self.is_warm = True

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        assert episode_id not in self.open, "an episode has one environment"
        self.open[episode_id] = self.build(settings)
        self._calls[episode_id] = -1
        await self._take(episode_id)
        if state and self.restores:
            self.open[episode_id] = pickle.loads(state)
            return None
        return self.open[episode_id].reset(seed)

    async def step(self, episode_id: str, text: str) -> Transition:
        environment = self.open[episode_id]
        await self._take(episode_id)
        return environment.step(text)

    def snapshot(self, episode_id: str) -> bytes:
        return pickle.dumps(self.open[episode_id]) if self.restores else b""

    async def end(self, episode_id: str) -> None:
        self.open.pop(episode_id, None)

    def close(self) -> None:
        self.is_closed = True
        self.open.clear()

    async def _take(self, episode_id: str) -> None:
        self._calls[episode_id] += 1
        try:
            await asyncio.sleep(self.step_s(episode_id, self._calls[episode_id]))
        except EnvironmentFailed:
            del self.open[episode_id]
            raise


class Watched(SimulatedEngine):
    """Keeps what it was asked for."""

    def __init__(self, config: SimulatedEngineConfig = PACE, name: str = "engine-0") -> None:
        super().__init__(name, config, version=3, writer=GuessWriter())
        self.batches: list[tuple[Request, ...]] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.batches.append(tuple(requests))
        await super().submit(requests)

    @property
    def asked(self) -> list[Request]:
        return [request for batch in self.batches for request in batch]


@dataclass
class Stage:
    """A replica of episodes with its parts."""

    inner: Watched
    hosts: LocalHosts
    replica: EpisodeReplica

    async def collect(self, count: int) -> list[Generated]:
        """So many responses, in the order in which they come."""
        found: list[Generated] = []
        async with asyncio.timeout(1000):
            while len(found) < count:
                found += await self.replica.collect(100.0)
        return found

    async def play(self, *requests: Request) -> list[Generated]:
        """These, in their order."""
        await self.replica.submit(requests)
        found = {each.response_id: each for each in await self.collect(len(requests))}
        return [found[request.response_id] for request in requests]


def make_stage(
    hosts: LocalHosts | None = None,
    game: EnvironmentSettings = GAME,
    pace: SimulatedEngineConfig = PACE,
    log: TurnLog | None = None,
    name: str = "engine-0",
    **bounds: float,
) -> Stage:
    """In a running loop on a virtual clock."""
    inner, local = Watched(pace, name), hosts or LocalHosts()
    replica = EpisodeReplica(
        inner,
        local,
        environments={"guess": game},
        bridges={"guess": make_bridge(TOKENIZER, (EOS,), game.head(), "tiny")},
        config=EpisodeConfig.model_validate({"max_turn_tokens": 8, **bounds}),
        max_model_len=512,
        clock=asyncio.get_running_loop().time,
        log=log,
    )
    return Stage(inner=inner, hosts=local, replica=replica)


def on_stage(
    work: Callable[[Stage], Awaitable[Result]], hosts: LocalHosts | None = None, **options: object
) -> Result:
    """Run on a virtual clock; no task is left afterwards."""

    async def run() -> Result:
        result = await work(make_stage(hosts, **options))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    return run_virtual(run())


def episode(index: int = 0, **changes: object) -> Request:
    """A request for an episode; its prompt is the head."""
    values: Mapping[str, object] = {
        "prompt_id": "0/1",
        "index": index,
        "prompt_tokens": (int(TOKENIZER.bos_token_id),),
        "max_new_tokens": 100,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 11 + index,
        "environment": "guess",
        "episode_seed": 4,
        **changes,
    }
    return Request(**values)  # type: ignore[arg-type]
