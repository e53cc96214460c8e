"""Whole runs of the driver over environments in processes, on the real clock: a simulated engine
plays the guessing game, whose answers are slow now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
from episode_factories import EOS, GAME, PACE, TOKENIZER, EpisodeFeed, GuessWriter

from artifacts.records import Prompt, sampled_versions
from research.kills.delayed import DelayedConfig
from research.spot.simulated_rounds import (
    OverlappedRun,
    SimulatedLearner,
    SimulatedRound,
    play_overlapped,
)
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.environments.config import EnvironmentProcessConfig, EpisodeConfig
from tasks.environments.episodes.bridge import make_bridge
from tasks.environments.episodes.episode_replica import EpisodeReplica
from tasks.environments.pools.pool import EnvironmentPool
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

PATIENT = EnvironmentProcessConfig(
    num_hosts=48, reset_s=120.0, step_s=120.0
)  # however busy the machine is
SLOW = DelayedConfig(
    environment=GAME, mean_s=0.02, deviation_s=0.02, slow_turns=0.1, slow_factor=20.0
)
BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=2)
BRIDGE = make_bridge(TOKENIZER, (EOS,), GAME.head(), "tiny")


def ask(refs: Iterable[PromptRef]) -> dict[str, Prompt]:
    """Every prompt is the head, with a seed of its own."""
    return {
        ref.prompt_id: Prompt(
            prompt_id=ref.prompt_id,
            domain="guess",
            token_ids=BRIDGE.head,
            gold="",
            text="",
            episode_seed=int(ref.prompt_id.rpartition("/")[2]),
        )
        for ref in refs
    }


def played(policy: Policy, num_steps: int) -> list[SimulatedRound]:
    """The rounds of a run."""

    async def play() -> list[SimulatedRound]:
        pool = EnvironmentPool(PATIENT, (SLOW,))
        await pool.warm()
        engine = EpisodeReplica(
            SimulatedEngine("engine-0", PACE, writer=GuessWriter()),
            pool,
            environments={"guess": SLOW},
            bridges={"guess": BRIDGE},
            config=EpisodeConfig(max_turn_tokens=8),
            max_model_len=512,
        )
        run = OverlappedRun(
            policy=policy,
            batch=BATCH,
            num_steps=num_steps,
            domains=("guess",) * 100,
            engines=[engine],
            learner=SimulatedLearner([engine], train_s=0.2),
            feed=EpisodeFeed,
            max_response_tokens=100,
            ask=ask,
        )
        try:
            async with asyncio.timeout(300):
                return [each async for each in play_overlapped(run)]
        finally:
            engine.close()

    return asyncio.run(play())


def check_trained_once(rounds: list[SimulatedRound], num_steps: int) -> None:
    """Every group that was drawn is trained once, whole, by episodes of its seed."""
    groups = [group for each in rounds for group in each.result.groups]
    names = Counter(group.prompt.prompt_id for group in groups)
    state = rounds[-1].state
    assert set(names.values()) == {1}
    assert len(groups) == state.num_drawn == state.num_trained
    assert len(groups) >= num_steps * BATCH.prompts_per_step
    for group in groups:
        assert len(group.responses) == BATCH.responses_per_prompt
        for response in group.responses:
            episode = response.generated.episode
            assert episode is not None
            environment = GAME.build()
            said = [environment.reset(group.prompt.episode_seed or 0)]
            said += [environment.step(turn.action).observation for turn in episode.turns]
            assert said == [*(turn.observation for turn in episode.turns), episode.last_observation]


@pytest.mark.parametrize("response_overprovision", [1.0, 1.5])
def test_groups_that_are_put_off_are_trained_in_long_rounds(
    response_overprovision: float,
) -> None:
    policy = TailBatchingConfig(
        prompt_overprovision=2.0, response_overprovision=response_overprovision
    )
    rounds = played(policy, num_steps=4)
    assert [each.plan.kind for each in rounds] == ["short", "long"] * 2
    check_trained_once(rounds, num_steps=4)
    for short, long in zip(rounds[::2], rounds[1::2], strict=True):
        trained = {group.prompt.prompt_id for group in long.result.groups}
        assert set(short.result.deferred) == trained
        asked = {each.response_id for each in short.result.generated}
        num_members = round(BATCH.responses_per_prompt * response_overprovision)
        assert len(asked) >= 2 * BATCH.prompts_per_step * num_members, "what was stopped came back"


def test_no_token_of_an_overlapped_run_is_older_than_the_bound() -> None:
    rounds = played(AsynchronousConfig(async_ratio=1.0), num_steps=6)
    check_trained_once(rounds, num_steps=6)
    lags = [
        each.plan.step - 1 - span.version
        for each in rounds
        for group in each.result.groups
        for response in group.responses
        for span in sampled_versions(response.generated)
    ]
    assert min(lags) >= 0
    assert max(lags) == 1
    assert any(each.result.in_flight for each in rounds), "episodes run on from round to round"
