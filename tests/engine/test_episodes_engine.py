"""Episodes through the real engine: what the learner computes for their sampled tokens agrees with
what the engine drew them by, and a seed says all of them, wherever they are played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from artifacts.models.registry import TinyPlayerConfig
from artifacts.records import Generated, Request
from research.benchmarks.direct_environments import DirectEnvironments
from tasks.engines.model_files import read_stop_ids, read_tokenizer
from tasks.engines.vllm.engine import VllmEngine
from tasks.environments.config import EpisodeConfig
from tasks.environments.episodes.bridge import bridge_of
from tasks.environments.episodes.episode_replica import EpisodeReplica
from tasks.environments.games.guess import GuessConfig
from tasks.tiny_models.models import resolve_model
from tests.engine.conftest import FLOAT32_ATOL, Slot, SmallEngineConfig

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

GAME = GuessConfig(style="terse", largest=99, max_turns=8)
NUM_EPISODES = 16


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that plays: its turns end by themselves mostly."""
    config = TinyPlayerConfig(
        game={"kind": "guess", "style": "terse", "largest": 99, "max_turns": 8}, warm_up_steps=40
    )
    cache = tmp_path_factory.mktemp("player")
    return str(resolve_model(config, Path(cache), report=lambda line: None))


@pytest.fixture(scope="module")
def start(player: str, slot: Slot) -> Iterator[Callable[[], EpisodeReplica]]:
    slot.take()
    config = SmallEngineConfig(
        dtype="float32", max_num_seqs=NUM_EPISODES, max_model_len=128, kv_cache_gb=0.05
    )
    engine = VllmEngine(config=config, model_path=player, name="player", cpu_ids=None, seed=1)
    engine.start()
    slot.hold(engine)
    bridge = bridge_of(player, GAME.head())

    def around() -> EpisodeReplica:
        return EpisodeReplica(
            engine,
            DirectEnvironments(),
            environments={"guess": GAME},
            bridges={"guess": bridge},
            config=EpisodeConfig(max_turn_tokens=4),
            max_model_len=128,
        )

    yield around
    slot.take()


def requests(player: str) -> list[Request]:
    head = bridge_of(player, GAME.head()).head
    return [
        Request(
            prompt_id=f"0/{number // 4}",
            index=number % 4,
            prompt_tokens=head,
            max_new_tokens=64,
            temperature=1.0,
            top_p=1.0,
            seed=100 + number,
            environment="guess",
            episode_seed=number // 4,
        )
        for number in range(NUM_EPISODES)
    ]


async def play(replica: EpisodeReplica, asked: list[Request]) -> dict[str, Generated]:
    await replica.submit(asked)
    return await collect(replica, len(asked))


async def collect(replica: EpisodeReplica, count: int) -> dict[str, Generated]:
    found: dict[str, Generated] = {}
    async with asyncio.timeout(600):
        while len(found) < count:
            found |= {each.response_id: each for each in await replica.collect(5.0)}
    return found


@pytest.fixture(scope="module")
def episodes(player: str, start: Callable[[], EpisodeReplica]) -> dict[str, Generated]:
    return asyncio.run(play(start(), requests(player)))


def test_the_learner_gives_sampled_tokens_the_log_probabilities_of_the_engine(
    player: str, episodes: dict[str, Generated]
) -> None:
    """For every token of every episode, over all turns and bridges: what the engine computed turn
    by turn, from its cache, is what one forward pass over the whole episode gives."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(player, dtype=torch.float32).eval()
    head = list(bridge_of(player, GAME.head()).head)
    longest = 0
    for generated in episodes.values():
        assert generated.episode is not None
        longest = max(longest, len(generated.episode.turns))
        ids = torch.tensor([[*head, *generated.token_ids]])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(head) - 1 :, 0]
        for places in generated.sampled:
            engines = torch.tensor(generated.logprobs[places.start : places.stop])
            own_ones = own[places.start : places.stop]
            torch.testing.assert_close(own_ones, engines, rtol=0, atol=FLOAT32_ATOL)
    assert longest == 8


def test_the_tokens_given_are_those_of_the_template(
    player: str, episodes: dict[str, Generated]
) -> None:
    tokenizer = read_tokenizer(player)
    stop_ids = read_stop_ids(player, tokenizer)
    for generated in episodes.values():
        assert generated.episode is not None
        end = 0
        for turn, places in zip(generated.episode.turns, generated.sampled, strict=True):
            given = generated.token_ids[end : places.start]
            end = places.stop
            assert turn.num_given == len(given)
            assert tokenizer.decode(given, skip_special_tokens=True) == turn.observation
            action = generated.token_ids[places.start : places.stop]
            assert tokenizer.decode(action, skip_special_tokens=True) == turn.action
            assert action[-1] in stop_ids or len(action) == 4


def test_a_seed_gives_the_same_episode_alone_and_beside_others(
    player: str, start: Callable[[], EpisodeReplica], episodes: dict[str, Generated]
) -> None:
    async def alone() -> dict[str, Generated]:
        found: dict[str, Generated] = {}
        for request in requests(player)[:4]:
            found |= await play(start(), [request])
        return found

    for name, generated in asyncio.run(alone()).items():
        assert generated.token_ids == episodes[name].token_ids


def test_an_episode_that_is_stopped_draws_on_where_it_was(
    player: str, start: Callable[[], EpisodeReplica], episodes: dict[str, Generated]
) -> None:
    asked = {request.response_id: request for request in requests(player)}

    async def stop_and_go_on() -> tuple[int, dict[str, Generated]]:
        replica = start()
        await replica.submit([*asked.values()])
        await asyncio.sleep(0.05)
        await replica.abort([*asked])
        partial = await collect(replica, len(asked))
        begun = 0
        resumed = []
        for name, found in partial.items():
            assert found.episode is not None
            if found.finish_reason != "aborted":
                continue
            begun += bool(found.token_ids)
            kept = {
                "kept_tokens": found.token_ids,
                "kept_logprobs": found.logprobs,
                "kept_versions": found.versions,
                "kept_episode": found.episode,
            }
            resumed.append(replace(asked[name], **kept))  # type: ignore[arg-type]
        return begun, await play(start(), resumed)

    begun, whole = asyncio.run(stop_and_go_on())
    assert begun
    for name, generated in whole.items():
        assert generated.token_ids == episodes[name].token_ids
