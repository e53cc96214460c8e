"""An engine plays episodes: turns go to the engine, answers come from the environment, and what
comes back is one response, however it is stopped, moved or broken off."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from episode_factories import (
    EOS,
    GAME,
    PACE,
    TOKEN_S,
    LocalHosts,
    Stage,
    Watched,
    episode,
    on_stage,
)
from hypothesis import given
from hypothesis import strategies as st
from record_factories import make_request

from artifacts.attempt_log import TurnLog, read_turns
from artifacts.episodes import Ending
from artifacts.new_tokens import NewTokens, split_news
from artifacts.records import Fate, Generated, Request, Running, VersionSpan, WeightsRef
from tasks.engines.base import EngineLost
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.base import EnvironmentFailed, Transition
from tasks.environments.episodes.turn_batcher import TurnBatcher
from tasks.scheduling.ledger import account_tokens

NEWER = WeightsRef(version=4, path="", digest="")


def test_environments_are_made_ready_while_the_first_weights_are_loaded() -> None:
    async def load(stage: Stage) -> bool:
        await stage.replica.load_weights(NEWER, ())
        return stage.hosts.is_warm

    assert on_stage(load)


def check_tokens(generated: Generated) -> None:
    """Turns, tokens, log-probabilities and versions are of one length, and given tokens have the
    log-probability 0."""
    assert generated.episode is not None
    num_tokens = sum(turn.num_given + turn.num_sampled for turn in generated.episode.turns)
    assert num_tokens == len(generated.token_ids) == len(generated.logprobs)
    assert num_tokens == sum(span.num_tokens for span in generated.versions)
    sampled = {place for part in generated.sampled for place in part}
    for place, logprob in enumerate(generated.logprobs):
        assert (logprob != 0) == (place in sampled)


def check_game(generated: Generated, seed: int) -> None:
    """The environment, asked by itself, says what the record says."""
    assert generated.episode is not None
    environment = GAME.build()
    said, rewards = [environment.reset(seed)], list[float | None]()
    for turn in generated.episode.turns:
        if turn.reward is not None:
            transition = environment.step(turn.action)
            said.append(transition.observation)
            rewards.append(transition.reward)
    turns = generated.episode.turns
    assert [turn.observation for turn in turns] == said[: len(turns)]
    assert [turn.reward for turn in turns if turn.reward is not None] == rewards


def kept_of(partial: Generated) -> dict[str, object]:
    """What a request that goes on with it brings along."""
    assert partial.episode is not None
    return {
        "kept_tokens": partial.token_ids,
        "kept_logprobs": partial.logprobs,
        "kept_versions": partial.versions,
        "kept_episode": partial.episode,
    }


def same_episode(one: Generated, other: Generated) -> bool:
    """Whether they say the same, at whatever time."""
    assert one.episode is not None
    assert other.episode is not None
    return one.token_ids == other.token_ids and [
        (turn.num_given, turn.num_sampled, turn.observation, turn.action, turn.reward)
        for turn in one.episode.turns
    ] == [
        (turn.num_given, turn.num_sampled, turn.observation, turn.action, turn.reward)
        for turn in other.episode.turns
    ]


# --- a whole episode ---------------------------------------------------------------------------


def test_turns_are_told_of_to_nobody_and_other_responses_are() -> None:
    """A turn is kept when its environment has answered it."""
    plain = make_request(prompt_id="0/9", max_new_tokens=8)

    async def play(stage: Stage) -> tuple[list[Generated], list[NewTokens]]:
        await stage.replica.submit([episode(), plain])
        whole: list[Generated] = []
        reports: list[NewTokens] = []
        while len(whole) < 2:
            over, told = split_news(await stage.replica.collect(100.0))
            whole, reports = whole + over, reports + told
        return whole, reports

    telling = PACE.model_copy(update={"report_tokens": 1})
    whole, reports = on_stage(play, pace=telling)
    assert {new.response_id for new in reports} == {plain.response_id}
    (played,) = (each for each in whole if each.episode is not None)
    (expected,) = on_stage(lambda stage: stage.play(episode()))
    assert same_episode(played, expected)


def test_an_episode_is_one_response_of_given_and_sampled_tokens() -> None:
    async def play(stage: Stage) -> tuple[list[Generated], list[Request]]:
        return await stage.play(episode()), stage.inner.asked

    (generated,), asked = on_stage(play)
    check_tokens(generated)
    check_game(generated, seed=4)
    assert generated.episode is not None
    assert (generated.episode.ending, generated.finish_reason) == (Ending.TERMINATED, "stop")
    assert generated.versions == (VersionSpan(version=3, num_tokens=len(generated.token_ids)),)
    for turn, request in zip(generated.episode.turns, asked, strict=True):
        assert (request.environment, request.seed) == ("", 11)
        assert turn.asked_s < turn.acted_s < (turn.answered_s or 0.0)
    ids = episode().prompt_tokens + generated.token_ids
    for request, part in zip(asked, generated.sampled, strict=True):
        assert request.prompt_tokens == ids[: part.start + 1]


def test_an_action_that_is_cut_is_ended_by_a_given_token() -> None:
    async def play(stage: Stage) -> list[Generated]:
        return await stage.play(*map(episode, range(8)))

    cut = 0
    for generated in on_stage(play):
        assert generated.episode is not None
        for turn, after in pairwise(generated.episode.turns):
            is_cut = turn.num_sampled == 8
            cut += is_cut
            assert after.num_given == (2 if is_cut else 1)
    assert cut


def test_turns_of_one_tick_are_submitted_together() -> None:
    async def play(stage: Stage) -> list[int]:
        await stage.play(*map(episode, range(5)))
        return [len(batch) for batch in stage.inner.batches]

    assert on_stage(play)[0] == 5


def test_a_request_without_environment_passes_straight_through() -> None:
    plain = episode(1, environment="", episode_seed=0)

    async def play(stage: Stage) -> list[Generated]:
        return await stage.play(episode(0), plain)

    first, second = on_stage(play)
    assert first.episode is not None
    assert second.episode is None
    assert second.token_ids[-1] == EOS


def test_environments_think_beside_a_full_engine() -> None:
    """With one slot, two episodes of slow environments take hardly longer than one."""

    async def play(stage: Stage) -> float:
        await stage.play(*(replace(episode(), index=index) for index in range(2)))
        return asyncio.get_running_loop().time()

    one_slot = PACE.model_copy(update={"max_batch": 1})
    hosts = LocalHosts(step_s=lambda episode_id, call: 1.0)
    num_turns = 6
    assert on_stage(play, hosts, pace=one_slot) < (1.0 + 2 * 8 * TOKEN_S) * (num_turns + 1)


# --- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "bounds", "ending"),
    [
        ({"max_new_tokens": 12}, {}, Ending.TOKENS),
        ({}, {"episode_s": 0.2}, Ending.TIME),
    ],
)
def test_a_bound_ends_an_episode_between_two_turns(
    changes: dict[str, object], bounds: dict[str, float], ending: Ending
) -> None:
    async def play(stage: Stage) -> list[Generated]:
        return await stage.play(episode(0, **changes))

    (generated,) = on_stage(play, **bounds)
    check_tokens(generated)
    check_game(generated, seed=4)
    assert generated.episode is not None
    assert (generated.episode.ending, generated.finish_reason) == (ending, "length")
    assert all(turn.reward is not None for turn in generated.episode.turns)
    assert generated.episode.last_observation in ("h", "l", "x")
    assert len(generated.token_ids) <= (12 if changes else 100)


class Endless:
    """Never ends."""

    def reset(self, seed: int) -> str:
        return "a"

    def step(self, text: str) -> Transition:
        return Transition("b", 0.5, False, text.startswith("never"), {})


def test_turns_are_bounded_whatever_the_environment_says() -> None:
    async def play(stage: Stage) -> list[Generated]:
        return await stage.play(episode())

    (generated,) = on_stage(play, LocalHosts(build=lambda settings: Endless()))
    assert generated.episode is not None
    assert (generated.episode.ending, len(generated.episode.turns)) == (Ending.TURNS, 6)


def test_a_first_observation_without_room_after_it_is_the_environments_fault() -> None:
    async def play(stage: Stage) -> list[Generated]:
        return await stage.play(episode(0, max_new_tokens=1))

    (generated,) = on_stage(play)
    assert generated.episode is not None
    assert generated.episode.ending is Ending.CRASHED
    assert "the first observation has 1 tokens" in generated.episode.detail


@pytest.mark.parametrize("ending", [Ending.CRASHED, Ending.UNANSWERED])
@pytest.mark.parametrize("at", [0, 2])
def test_an_environment_that_fails_ends_its_episode_alone(ending: Ending, at: int) -> None:
    def step_s(episode_id: str, call: int) -> float:
        if episode_id == "0/1:0" and call == at:
            raise EnvironmentFailed(ending, "it broke")
        return 0.05

    async def play(stage: Stage) -> list[Generated]:
        found = await stage.play(episode(0), episode(1))
        assert not stage.hosts.open
        return found

    failed, other = on_stage(play, LocalHosts(step_s=step_s))
    check_tokens(failed)
    assert failed.episode is not None
    assert other.episode is not None
    assert (failed.episode.ending, failed.episode.detail) == (ending, "it broke")
    assert len(failed.episode.turns) == at
    assert other.episode.ending is Ending.TERMINATED


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": 600}, "fit max_model_len 512"),
        ({"environment": "chess"}, "0/1:1 asks for 'chess', known are guess; add it"),
        ({"kept_tokens": (5,)}, "must be those of its kept turns"),
    ],
)
def test_an_unfit_episode_is_refused_with_all_that_came_with_it(
    changes: dict[str, object], sentence: str
) -> None:
    async def play(stage: Stage) -> list[Generated]:
        with pytest.raises(ValueError, match=sentence):
            await stage.replica.submit([episode(0), episode(1, **changes)])
        return await stage.replica.collect(1.0)

    assert on_stage(play) == []


def test_a_response_is_submitted_once_at_a_time() -> None:
    async def play(stage: Stage) -> None:
        await stage.replica.submit([episode()])
        with pytest.raises(ValueError, match="got 0/1:0 twice"):
            await stage.replica.submit([episode()])
        await stage.collect(1)

    on_stage(play)


# --- stopped, and gone on with -----------------------------------------------------------------

# seconds after which an episode is stopped: before it began, in its reset, in the engine, in the
# environment, and so on
MOMENTS = [0.0, 0.03, 0.051, 0.055, 0.07, 0.1, 0.11, 0.14, 0.151, 0.2, 0.25, 0.31, 0.4]


@pytest.mark.parametrize("moment_s", MOMENTS)
def test_an_episode_that_is_stopped_goes_on_elsewhere_as_if_nothing_had_been(
    moment_s: float,
) -> None:
    async def whole(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode())
        return generated

    async def stop(stage: Stage) -> Generated:
        await stage.replica.submit([episode()])
        await asyncio.sleep(moment_s)
        await stage.replica.abort(["0/1:0"])
        await stage.replica.abort(["0/1:0"])
        (partial,) = await stage.collect(1)
        assert await stage.replica.collect(1.0) == []
        assert not stage.hosts.open
        return partial

    async def go_on(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode(0, **kept_of(partial)))
        return generated

    expected = on_stage(whole)
    partial = on_stage(stop)
    check_tokens(partial)
    check_game(partial, seed=4)
    assert partial.episode is not None
    assert (partial.finish_reason, partial.episode.ending) == ("aborted", None)
    assert partial.token_ids == expected.token_ids[: len(partial.token_ids)]
    generated = on_stage(go_on)
    check_tokens(generated)
    assert same_episode(generated, expected)
    assert generated.episode is not None
    assert generated.logprobs == expected.logprobs
    answered = [turn for turn in partial.episode.turns if turn.reward is not None]
    assert generated.episode.num_replayed == len(answered)


def test_an_episode_that_is_stopped_at_its_limit_can_be_gone_on_with() -> None:
    """Its tokens are all there: only the environment has yet to answer."""
    limit = 5  # an observation and a guess of three digits with its end token

    async def stop(stage: Stage) -> Generated:
        await stage.replica.submit([episode(0, max_new_tokens=limit)])
        await asyncio.sleep(0.05 + 4 * TOKEN_S + 0.02)
        await stage.replica.abort(["0/1:0"])
        (partial,) = await stage.collect(1)
        return partial

    async def go_on(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode(0, max_new_tokens=limit, **kept_of(partial)))
        assert not stage.inner.asked
        return generated

    partial = on_stage(stop)
    assert len(partial.token_ids) == limit
    generated = on_stage(go_on)
    assert generated.token_ids == partial.token_ids
    assert generated.episode is not None
    assert generated.episode.ending is Ending.TOKENS
    assert generated.episode.turns[-1].reward == 0.0


def test_an_environment_that_says_something_else_begins_the_episode_again() -> None:
    async def stop(stage: Stage) -> Generated:
        await stage.replica.submit([episode()])
        await asyncio.sleep(0.3)
        await stage.replica.abort(["0/1:0"])
        (partial,) = await stage.collect(1)
        return partial

    partial = on_stage(stop)
    assert partial.episode is not None
    other = partial.episode.turns[0]
    turns = (partial.episode.turns[0], replace(partial.episode.turns[1], observation="?"))
    tokens = sum(turn.num_given + turn.num_sampled for turn in turns)
    kept = {
        "kept_tokens": partial.token_ids[:tokens],
        "kept_logprobs": partial.logprobs[:tokens],
        "kept_versions": (VersionSpan(version=3, num_tokens=tokens),),
        "kept_episode": replace(partial.episode, turns=turns),
    }

    async def go_on(stage: Stage) -> list[Generated]:
        return [*await stage.play(episode(0, **kept)), *await stage.play(episode())]

    again, expected = on_stage(go_on)
    assert same_episode(again, expected)
    assert again.episode is not None
    assert (again.episode.num_replayed, other.observation) == (1, "=")


def stopped_after(seconds: float, hosts: LocalHosts) -> Generated:
    """An episode that was stopped then."""

    async def stop(stage: Stage) -> Generated:
        await stage.replica.submit([episode()])
        await asyncio.sleep(seconds)
        await stage.replica.abort(["0/1:0"])
        (partial,) = await stage.collect(1)
        return partial

    return on_stage(stop, hosts)


def gone_on_with(partial: Generated, hosts: LocalHosts) -> Generated:
    async def go_on(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode(0, **kept_of(partial)))
        return generated

    return on_stage(go_on, hosts)


class Forgetful:
    """An environment that never says the same twice, but pickles with what it has said."""

    num_made = 0

    def __init__(self) -> None:
        Forgetful.num_made += 1
        self.number, self.turn = Forgetful.num_made, 0

    def reset(self, seed: int) -> str:
        return chr(ord("a") + self.number % 26)

    def step(self, text: str) -> Transition:
        self.turn += 1
        return Transition(self.reset(0), float(self.number), self.turn == 4, False, {})


def forgetful(*, restores: bool) -> LocalHosts:
    return LocalHosts(build=lambda settings: Forgetful(), restores=restores)


@pytest.mark.parametrize("moment_s", MOMENTS)
def test_an_environment_that_pickles_goes_on_without_a_replay(moment_s: float) -> None:
    async def whole(stage: Stage) -> Generated:
        (generated,) = await stage.play(episode())
        return generated

    expected = on_stage(whole)
    partial = stopped_after(moment_s, LocalHosts(restores=True))
    generated = gone_on_with(partial, LocalHosts(restores=True))
    check_tokens(generated)
    check_game(generated, seed=4)
    assert same_episode(generated, expected)
    assert generated.episode is not None
    assert partial.episode is not None
    assert generated.episode.num_resumed == bool(partial.episode.turns)
    assert generated.episode.num_replayed == generated.episode.num_restarted == 0
    assert generated.episode.snapshot is None


def test_an_environment_that_does_not_repeat_itself_goes_on_from_its_snapshot() -> None:
    partial = stopped_after(0.3, forgetful(restores=True))
    generated = gone_on_with(partial, forgetful(restores=True))
    check_tokens(generated)
    assert partial.episode is not None
    assert generated.episode is not None
    assert len(partial.episode.turns) >= 2
    assert len(generated.episode.turns) == 4
    assert len({turn.reward for turn in generated.episode.turns}) == 1
    assert (generated.episode.num_resumed, generated.episode.num_forgotten) == (1, 0)


def test_one_that_neither_pickles_nor_repeats_itself_begins_again_and_its_tokens_are_counted() -> (
    None
):
    partial = stopped_after(0.3, forgetful(restores=False))
    again = gone_on_with(partial, forgetful(restores=False))
    check_tokens(again)
    assert again.episode is not None
    assert len(again.episode.turns) == 4
    assert len({turn.reward for turn in again.episode.turns}) == 1
    assert (again.episode.num_resumed, again.episode.num_restarted) == (0, 1)
    assert again.episode.num_forgotten == partial.num_sampled > 0
    ledger = account_tokens([again], trained={"0/1:0"})
    assert ledger[Fate.STALE] == partial.num_sampled
    assert ledger[Fate.TRAINED] == again.num_sampled


# --- written down, and found when its engine is gone -------------------------------------------


def logged(tmp_path: Path, name: str, until_s: float | None = None) -> dict[str, Generated]:
    """What is on disk of four episodes when their engine is gone; the responses, where it is not
    before they are over."""

    async def play(stage: Stage) -> dict[str, Generated]:
        await stage.replica.submit([*map(episode, range(4))])
        if until_s is None:
            return {each.response_id: each for each in await stage.collect(4)}
        await asyncio.sleep(until_s)
        stage.inner.fail()
        await asyncio.sleep(1.0)
        return read_turns(tmp_path / name, lambda attempt: True)

    return on_stage(play, LocalHosts(restores=True), log=TurnLog(tmp_path / name, "engine-0"))


@pytest.mark.parametrize("moment_s", [0.06, 0.21, 0.33, 0.5, 5.0])
def test_every_finished_turn_of_a_lost_engine_is_on_disk_and_gone_on_from(
    moment_s: float, tmp_path: Path
) -> None:
    whole = logged(tmp_path, "whole")
    found = logged(tmp_path, "lost", moment_s)

    async def go_on(stage: Stage) -> list[Generated]:
        asked = [
            episode(index, **(kept_of(found[name]) if (name := f"0/1:{index}") in found else {}))
            for index in range(4)
        ]
        return await stage.play(*asked)

    resumed = on_stage(go_on, LocalHosts(restores=True))
    num_turns = 0
    for generated in resumed:
        expected = whole[generated.response_id]
        assert same_episode(generated, expected)
        assert generated.episode is not None
        assert expected.episode is not None
        assert generated.episode.ending is expected.episode.ending
        assert generated.episode.last_observation == expected.episode.last_observation
        known = found.get(generated.response_id)
        if known is None:
            continue
        check_tokens(known)
        assert known.episode is not None
        answered = [turn for turn in expected.episode.turns if (turn.answered_s or 0.0) <= moment_s]
        assert known.episode.turns == tuple(answered)
        assert generated.episode.turns[: len(answered)] == known.episode.turns
        num_turns += len(answered)
    assert num_turns or moment_s == 0.06


# --- weights -----------------------------------------------------------------------------------


def test_a_load_that_drops_ends_every_episode_with_its_environment() -> None:
    async def play(stage: Stage) -> list[Generated]:
        await stage.replica.submit([*map(episode, range(4))])
        await asyncio.sleep(0.12)
        await stage.replica.abort(["0/1:2"])
        await stage.replica.load_weights(NEWER, ())
        assert not stage.hosts.open
        assert (await stage.replica.stats()).progress == {}
        assert await stage.replica.collect(10.0) == []
        return await stage.play(episode(0))

    (generated,) = on_stage(play)
    assert {span.version for span in generated.versions} == {4}


@pytest.mark.parametrize("running", [Running.INTERRUPT, Running.KEEP, Running.DRAIN])
def test_other_loads_let_episodes_go_on_with_the_new_version(running: Running) -> None:
    async def play(stage: Stage) -> Generated:
        await stage.replica.submit([episode()])
        await asyncio.sleep(0.18)
        await stage.replica.load_weights(NEWER, (), running)
        (generated,) = await stage.collect(1)
        return generated

    generated = on_stage(play)
    check_tokens(generated)
    assert [span.version for span in generated.versions] == [3, 4]


# --- readings and losses -----------------------------------------------------------------------


def test_progress_is_what_episodes_hold_those_that_think_too() -> None:
    async def play(stage: Stage) -> list[int]:
        await stage.replica.submit([episode()])
        found = []
        for until_s in (0.04, 0.05 + 2.5 * TOKEN_S, 0.12, 0.14 + 2.5 * TOKEN_S):
            await asyncio.sleep(until_s - asyncio.get_running_loop().time())
            found.append((await stage.replica.stats()).progress["0/1:0"])
        await stage.collect(1)
        return found

    assert on_stage(play) == [0, 3, 5, 8]


def test_the_death_of_the_inner_engine_is_heard_and_ends_the_environments() -> None:
    async def play(stage: Stage) -> None:
        await stage.replica.submit([*map(episode, range(3))])
        await asyncio.sleep(0.07)
        waiting = asyncio.create_task(stage.replica.collect(100.0))
        await asyncio.sleep(0)
        stage.inner.fail()
        with pytest.raises(EngineLost):
            await waiting
        with pytest.raises(EngineLost):
            await stage.replica.submit([episode(7)])
        await asyncio.sleep(0.1)
        assert not stage.hosts.open

    on_stage(play)


def test_closing_ends_environments_and_tasks() -> None:
    async def play(stage: Stage) -> None:
        await stage.replica.submit([*map(episode, range(3))])
        await asyncio.sleep(0.07)
        stage.replica.close()
        await asyncio.sleep(0.1)
        assert stage.hosts.is_closed
        assert not stage.hosts.open
        with pytest.raises(EngineLost, match="was closed"):
            await stage.replica.collect(1.0)

    on_stage(play)


# --- anything, in any order --------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "abort", "abort all", "plain", "interrupt", "drain", "drop"]),
        st.integers(0, 5),
        st.floats(0.0, 0.3),
    ),
    min_size=1,
    max_size=12,
)


@given(actions=ACTIONS, slow=st.integers(0, 3), slots=st.sampled_from([1, 2, 64]))
def test_every_submitted_response_comes_back_once_whatever_happens(
    actions: Sequence[tuple[str, int, float]], slow: int, slots: int
) -> None:
    def step_s(episode_id: str, call: int) -> float:
        if (len(episode_id) + call) % 7 == 6:
            raise EnvironmentFailed(Ending.CRASHED, "it broke")
        return 0.3 * ((call + slow) % 4)

    async def play(stage: Stage) -> None:
        running: set[str] = set()
        number = 0

        def take(found: Sequence[Generated]) -> None:
            for generated in found:
                running.remove(generated.response_id)
                if generated.episode is not None:
                    check_tokens(generated)
                    check_game(generated, seed=4)

        for action, index, wait_s in actions:
            take(await stage.replica.collect(0.0))
            match action:
                case "submit" | "plain":
                    changes = {"environment": "" if action == "plain" else "guess"}
                    requests = [
                        episode(number + more, **changes)  # type: ignore[arg-type]
                        for more in range(index + 1)
                    ]
                    number += len(requests)
                    running |= {request.response_id for request in requests}
                    await stage.replica.submit(requests)
                case "abort":
                    await stage.replica.abort([f"0/1:{index}", f"0/1:{number - 1}"])
                case "abort all":
                    await stage.replica.abort(sorted(running))
                case "drop":
                    await stage.replica.load_weights(NEWER, ())
                    running.clear()
                    assert not stage.hosts.open
                case _:
                    await stage.replica.load_weights(NEWER, (), Running(action))
            await asyncio.sleep(wait_s)
        while running:
            found = await stage.replica.collect(100.0)
            assert found, f"{running} never came back"
            take(found)
        assert await stage.replica.collect(10.0) == []
        assert not stage.hosts.open
        assert (await stage.replica.stats()).progress == {}

    on_stage(play, LocalHosts(step_s=step_s), pace=PACE.model_copy(update={"max_batch": slots}))


@pytest.mark.parametrize("ticks", range(6))
def test_a_batcher_that_is_closed_at_any_moment_leaves_no_coroutine_behind(ticks: int) -> None:
    """Python warns of one that is never awaited, whenever it comes to collect it."""

    async def run() -> None:
        desk = TurnBatcher(Watched(), hand_on=pytest.fail, lose=pytest.fail)
        asked = asyncio.create_task(desk.turn(make_request()))
        for _ in range(ticks):
            await asyncio.sleep(0)
        await desk.clear()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_virtual(run())
        gc.collect()
    assert [str(each.message) for each in told if "never awaited" in str(each.message)] == []
