"""An environment that is lost with its worker costs its episode nothing: another one is led to
where it was, or the episode begins again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from episode_factories import LocalHosts, Stage, episode, on_stage

from artifacts.attempt_log import TurnLog, read_turns
from artifacts.episodes import Ending, Episode
from artifacts.records import Generated
from tasks.environments.base import EnvironmentLost, EnvironmentSettings, Transition
from tasks.environments.episodes.play import MAX_LOST

NUM_TURNS = 4


class Still:
    """Says and pays the same in every turn."""

    def __init__(self, said: str = "h", paid: float = 1.0) -> None:
        self._said, self._paid, self._num_turns = said, paid, 0

    def reset(self, seed: int) -> str:
        return "="

    def step(self, text: str) -> Transition:
        self._num_turns += 1
        return Transition(self._said, self._paid, self._num_turns == NUM_TURNS, False, {})


def losing(
    times: int,
    call: int,
    build: Callable[[EnvironmentSettings], Still] = lambda settings: Still(),
    *,
    restores: bool = False,
) -> LocalHosts:
    """Hosts that lose so many environments at this call of an episode, its reset being 0."""
    lost = count()

    def step_s(episode_id: str, number: int) -> float:
        if number == call and next(lost) < times:
            raise EnvironmentLost("its machine is gone")
        return 0.05

    return LocalHosts(step_s=step_s, build=build, restores=restores)


def changing(first: Still, then: Callable[[], Still]) -> Callable[[EnvironmentSettings], Still]:
    """Builds this one, and others later."""
    made = iter([first])
    return lambda settings: next(made, None) or then()


def played(hosts: LocalHosts, log: TurnLog | None = None) -> tuple[Generated, Episode]:
    async def play(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode())
        assert not stage.hosts.open
        return generated

    generated = on_stage(play, hosts, log=log)
    assert generated.episode is not None
    return generated, generated.episode


def told(episode: Episode) -> list[tuple[str, str, float | None]]:
    return [(turn.observation, turn.action, turn.reward) for turn in episode.turns]


def counts(episode: Episode) -> tuple[int, int, int]:
    return episode.num_resumed, episode.num_replayed, episode.num_restarted


@pytest.mark.parametrize("restores", [True, False])
@pytest.mark.parametrize("call", [0, 1, 2, NUM_TURNS])
def test_an_episode_goes_on_as_if_its_environment_had_not_been_lost(
    call: int, restores: bool
) -> None:
    expected, whole = played(losing(0, call))
    generated, episode = played(losing(1, call, restores=restores))
    assert told(episode) == told(whole)
    assert (generated.token_ids, generated.logprobs) == (expected.token_ids, expected.logprobs)
    assert episode.ending is Ending.TERMINATED
    num_answered = max(0, call - 1)
    assert counts(episode) == (call > 0, 0 if restores else num_answered, 0)


def test_an_environment_that_is_lost_too_often_has_failed() -> None:
    _, episode = played(losing(MAX_LOST, 2))
    assert (episode.ending, episode.num_resumed) == (Ending.TERMINATED, MAX_LOST)
    generated, episode = played(losing(MAX_LOST + 1, 2))
    assert episode.ending is Ending.CRASHED
    assert episode.detail.endswith("were lost 4 times, at last: its machine is gone")
    assert len(episode.turns) == 2
    assert generated.finish_reason == "stop"


@pytest.mark.parametrize("other", [lambda: Still(said="l"), lambda: Still(paid=0.5)])
def test_an_episode_begins_again_where_no_environment_says_the_same(
    other: Callable[[], Still], tmp_path: Path
) -> None:
    log = TurnLog(tmp_path, "engine-0")
    generated, episode = played(losing(1, 3, changing(Still(), other)), log)
    _, expected = played(LocalHosts(build=lambda settings: other()))
    assert told(episode) == told(expected)
    assert counts(episode) == (0, 1, 1)
    assert episode.num_forgotten > 0
    (written,) = read_turns(tmp_path, lambda attempt: True).values()
    assert written.token_ids == generated.token_ids
    assert written.episode is not None
    assert told(written.episode) == told(episode)
