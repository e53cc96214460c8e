"""Observations that are pictures: a turn shows them to the engine where the chat template does, and
the record says which they were, however the episode goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from episode_factories import EOS, LocalHosts, Watched, episode
from picture_factories import make_seeing_prompts

from artifacts.attempt_log import TurnLog, read_turns
from artifacts.datasets.rows import Message
from artifacts.episodes import Ending, KeptObservation
from artifacts.models.character_tokenizer import VISION, seeing_tokenizer
from artifacts.pictures import PictureFolder, content_of
from artifacts.records import Generated, Request, ShownPicture
from artifacts.store import Store
from tasks.engines.picture_prompts import PictureKeeper
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.base import Environment, EnvironmentSettings, PicturedText, Transition
from tasks.environments.config import EpisodeConfig
from tasks.environments.episodes.bridge import Bridge, bridge_of, make_bridge
from tasks.environments.episodes.episode_replica import EpisodeReplica

Result = TypeVar("Result")
TOKENIZER = seeing_tokenizer()
TOKEN = int(TOKENIZER.convert_tokens_to_ids(VISION[2]))
HEAD = (Message(role="system", content=""),)
WALK = CustomEnvironmentConfig(
    path="examples.walk_environment:Walk", kwargs={"size": 3}, max_turns=3
)
# turns that end; STRIPPED takes thoughts out of all but the last
SAID = (
    "{% if m['content'] is string %}{{ said }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<eos>"
)
OPENED = "{% for m in messages %}{{ m['role'][0] }}{% set said = m['content'] %}"
CLOSED = "{% endfor %}{% if add_generation_prompt %}a{% endif %}"
ENDED = OPENED + SAID + CLOSED
STRIPPED = (
    OPENED
    + "{% if not loop.last and said is string %}"
    + "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    + SAID
    + CLOSED
)
THOUGHT = "<think>\n7\n</think>\n\n"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a model that takes pictures, without weights."""
    return make_seeing_prompts(tmp_path_factory.mktemp("model"))


def seen(text: str, *rows: int) -> KeptObservation:
    """An observation with pictures of so many rows of two tokens."""
    pictures = (
        ShownPicture(content=f"{text}{number}", begin=0, rows=size, columns=2)
        for number, size in enumerate(rows)
    )
    return KeptObservation(text=text, pictures=tuple(pictures))


def ending_bridge(template: str) -> Bridge:
    tokenizer = seeing_tokenizer()
    tokenizer.chat_template = template
    return make_bridge(tokenizer, (EOS,), HEAD, "tiny", TOKEN)


def template_ids(
    template: str, said: Sequence[tuple[KeptObservation, str]], last: KeptObservation
) -> tuple[int, ...]:
    """A chat as the template writes it, with as many tokens as its pictures have."""
    turns: list[dict[str, object]] = [{"role": "system", "content": ""}]
    for observation, action in (*said, (last, "")):
        parts = [{"type": "image"} for _ in observation.pictures]
        turns.append(
            {"role": "user", "content": [*parts, {"type": "text", "text": observation.text}]}
        )
        turns.append({"role": "assistant", "content": action})
    tokenizer = seeing_tokenizer()
    text = str(
        tokenizer.apply_chat_template(
            turns[:-1], chat_template=template, tokenize=False, add_generation_prompt=True
        )
    )
    for picture in (*(each for one, _ in said for each in one.pictures), *last.pictures):
        text = text.replace(VISION[2], "\0" * picture.num_tokens, 1)
    return tuple(tokenizer.encode(text.replace("\0", VISION[2]), add_special_tokens=False))


def check_places(
    tokens: Sequence[int], pictures: Sequence[ShownPicture], wanted: Sequence[KeptObservation]
) -> None:
    """The tokens have these pictures, in their order and nowhere else."""
    assert [each.content for each in pictures] == [
        each.content for observation in wanted for each in observation.pictures
    ]
    places = [place for place, index in enumerate(tokens) if index == TOKEN]
    assert places == [each.begin + part for each in pictures for part in range(each.num_tokens)]


# --- the bridge --------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [((), (1,)), ((2, 3), ()), ((1,), (2, 2))])
def test_pictures_stand_where_the_template_shows_them(sizes: tuple[tuple[int, ...], ...]) -> None:
    bridge = ending_bridge(ENDED)
    said: list[tuple[KeptObservation, str]] = []
    ids = bridge.head
    for number, rows in enumerate(sizes):
        observation = seen(f"{number}=", *rows)
        given = bridge.given(ids[len(bridge.head) :], said, observation)
        check_places(given.token_ids, given.pictures, [observation])
        assert not given.starts_over
        ids = (*ids, *given.token_ids)
        assert ids == template_ids(ENDED, said, observation)
        ids = (*ids, *TOKENIZER.encode("1"), EOS)
        said.append((observation, "1"))


def test_a_history_that_is_written_anew_shows_its_pictures_again() -> None:
    bridge = ending_bridge(STRIPPED)
    first, second, third = seen("0=", 1), seen("1=", 2, 1), seen("2=", 3)
    said = [(first, f"{THOUGHT}12")]
    begun = bridge.given((), (), first)
    path = (*begun.token_ids, *TOKENIZER.encode(f"{THOUGHT}12"), EOS)
    anew = bridge.given(path, said, second)
    assert anew.starts_over
    assert (*bridge.head, *anew.token_ids) == template_ids(STRIPPED, [(first, "12")], second)
    check_places(anew.token_ids, anew.pictures, [first, second])
    path = (*anew.token_ids, *TOKENIZER.encode("17"), EOS)
    on = bridge.given(path, [*said, (second, "17")], third)
    assert not on.starts_over
    check_places(on.token_ids, on.pictures, [third])


def test_a_picture_that_is_quoted_is_text(seeing: str) -> None:
    bridge = bridge_of(seeing, HEAD)
    given = bridge.given((), (), KeptObservation(text=VISION[2]))
    assert TOKEN not in given.token_ids


# --- whole episodes ----------------------------------------------------------------------------


def play(
    folder: Path,
    seeing: str,
    work: Callable[[EpisodeReplica, Watched], Awaitable[Result]],
    build: Callable[[EnvironmentSettings], Environment] = lambda settings: settings.build(),
    log: TurnLog | None = None,
    **hosts: bool,
) -> Result:
    """Work with a replica that keeps pictures in the folder, on a virtual clock."""
    keeper = PictureKeeper(seeing, PictureFolder(Store.open(str(folder))))

    async def keep(data: bytes) -> ShownPicture:
        return keeper.keep(data)

    async def run() -> Result:
        inner = Watched()
        replica = EpisodeReplica(
            inner,
            LocalHosts(build=build, **hosts),
            environments={"walk": WALK},
            bridges={"walk": bridge_of(seeing, HEAD)},
            config=EpisodeConfig(max_turn_tokens=8),
            max_model_len=512,
            clock=asyncio.get_running_loop().time,
            log=log,
            keep=keep if seeing else None,
        )
        return await work(replica, inner)

    return run_virtual(run())


def walk(**changes: object) -> Request:
    return episode(environment="walk", max_new_tokens=200, **changes)


async def whole(replica: EpisodeReplica, inner: Watched) -> tuple[Generated, list[Request]]:
    await replica.submit([walk()])
    (generated,) = await replica.collect(1000.0)
    assert isinstance(generated, Generated)
    return generated, inner.asked


def test_every_turn_shows_the_pictures_so_far(tmp_path: Path, seeing: str) -> None:
    generated, asked = play(tmp_path, seeing, whole)
    assert generated.episode is not None
    environment = WALK.build()
    observation = environment.reset(4)
    contents: list[str] = []
    for turn, request in zip(generated.episode.turns, asked, strict=True):
        assert isinstance(observation, PicturedText)
        contents.append(content_of(observation.pictures[0]))
        assert PictureFolder(Store.open(str(tmp_path))).read(contents[-1])
        (own,) = turn.pictures
        assert (own.content, own.num_tokens) == (contents[-1], 9)
        assert [each.content for each in request.pictures] == contents
        for each in request.pictures:
            tokens = request.prompt_tokens[each.begin : each.begin + 9]
            assert tokens == (TOKEN,) * 9
        observation = environment.step(turn.action).observation
    for each in generated.pictures:
        assert generated.token_ids[each.begin : each.begin + 9] == (TOKEN,) * 9
    assert [each.content for each in generated.pictures] == contents


@pytest.mark.parametrize("restores", [False, True])
def test_an_episode_that_was_stopped_goes_on_with_its_pictures(
    tmp_path: Path, seeing: str, restores: bool
) -> None:
    undisturbed, _ = play(tmp_path, seeing, whole)

    async def stopped(replica: EpisodeReplica, inner: Watched) -> None:
        await replica.submit([walk()])
        async with asyncio.timeout(100):
            while len(inner.asked) < 2:
                await asyncio.sleep(0.01)

    log = TurnLog(tmp_path / "turns", "engine-0")
    play(tmp_path, seeing, stopped, log=log, restores=restores)
    (kept,) = read_turns(tmp_path / "turns", lambda attempt: True).values()
    assert kept.episode is not None
    assert len(kept.episode.turns) == 1
    brought = {
        "kept_tokens": kept.token_ids,
        "kept_logprobs": kept.logprobs,
        "kept_versions": kept.versions,
        "kept_episode": kept.episode,
    }

    async def on(replica: EpisodeReplica, inner: Watched) -> Generated:
        await replica.submit([walk(**brought)])
        (generated,) = await replica.collect(1000.0)
        assert isinstance(generated, Generated)
        return generated

    generated = play(tmp_path, seeing, on, restores=restores)
    assert generated.episode is not None
    assert undisturbed.episode is not None
    assert generated.token_ids == undisturbed.token_ids
    assert generated.pictures == undisturbed.pictures
    assert generated.episode.num_replayed == (0 if restores else 1)


class Shows:
    """A walk whose pictures are made by a function of those that it draws."""

    def __init__(self, made: Callable[[tuple[bytes, ...]], Sequence[bytes]]) -> None:
        self._walk, self._made = WALK.build(), made

    def reset(self, seed: int) -> str:
        return self._shown(self._walk.reset(seed))

    def step(self, text: str) -> Transition:
        turn = self._walk.step(text)
        return turn._replace(observation=self._shown(turn.observation))

    def _shown(self, observation: str) -> str:
        assert isinstance(observation, PicturedText)
        return PicturedText.of(observation, self._made(observation.pictures))


def test_an_episode_whose_pictures_differ_begins_again(tmp_path: Path, seeing: str) -> None:
    first, _ = play(tmp_path, seeing, whole)
    assert first.episode is not None
    kept = replace(first.episode, turns=first.episode.turns[:1], ending=None)
    num_tokens = kept.turns[0].num_tokens
    brought = {
        "kept_tokens": first.token_ids[:num_tokens],
        "kept_logprobs": first.logprobs[:num_tokens],
        "kept_versions": (replace(first.versions[0], num_tokens=num_tokens),),
        "kept_episode": kept,
    }

    async def on(replica: EpisodeReplica, inner: Watched) -> Generated:
        await replica.submit([walk(**brought)])
        (generated,) = await replica.collect(1000.0)
        assert isinstance(generated, Generated)
        return generated

    generated = play(tmp_path, seeing, on, lambda settings: Shows(lambda drawn: drawn * 2))
    assert generated.episode is not None
    assert generated.episode.num_restarted == 1
    assert [len(turn.pictures) for turn in generated.episode.turns] == [2, 2, 2]


def test_a_picture_that_is_none_is_the_fault_of_the_environment(
    tmp_path: Path, seeing: str
) -> None:
    generated, asked = play(
        tmp_path, seeing, whole, lambda settings: Shows(lambda drawn: [b"nothing"])
    )
    assert generated.episode is not None
    assert generated.episode.ending is Ending.CRASHED
    assert "must be a whole file of PNG" in generated.episode.detail
    assert not asked


def test_a_model_of_text_plays_no_environment_that_shows_pictures(seeing: str) -> None:
    async def run() -> None:
        replica = EpisodeReplica(
            Watched(),
            LocalHosts(),
            environments={"walk": WALK},
            bridges={"walk": bridge_of(seeing, HEAD)},
            config=EpisodeConfig(),
            max_model_len=512,
        )
        await replica.submit([walk()])
        await replica.collect(1000.0)

    with pytest.raises(ValueError, match="needs a model with a vision tower, walk shows 1; choose"):
        run_virtual(run())
