"""Drafts of deferred responses: what a round leaves, what the next one asks, what a simulated
engine makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from record_factories import make_generated, make_request
from simulated_run_factories import AT_ONCE, MACHINE, WORK, make_run

from artifacts.episodes import Episode
from artifacts.records import Generated, Request
from flows.experiments.paper.setups import BY_MODEL
from flows.experiments.paper.varied_line import lines_of, part_of
from flows.experiments.paper.verified import DIVERGENCES, RIVAL_LINES, diverging
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.drafts import drafts_after, drafts_from
from tasks.rounds.records import RoundResult
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.simulation.figures import PlayedRun
from tasks.simulation.steps import play

NUM_TOKENS = 100
CONFIG = SimulatedEngineConfig(
    step_s=0.01,
    step_s_per_sequence=0.0,
    prefill_s_per_token=0.001,
    lengths=LengthModel(median_tokens=NUM_TOKENS, sigma=0),
    verify_deferred=True,
)


def generate(config: SimulatedEngineConfig, *requests: Request) -> tuple[list[Generated], int]:
    """The responses, by index, and what the engine counted."""

    async def collect() -> tuple[list[Generated], int]:
        engine = SimulatedEngine("engine-0", config)
        await engine.submit(requests)
        done: list[Generated] = []
        while len(done) < len(requests):
            done += [news for news in await engine.collect(1000) if isinstance(news, Generated)]
        return sorted(done, key=lambda each: each.index), (await engine.stats()).tokens_generated

    return run_virtual(collect())


def drafted(num_tokens: int, index: int = 0, **others: object) -> Request:
    return make_request(
        index=index,
        **{"prompt_tokens": (1,) * 10, "max_new_tokens": 1_000, "draft_tokens": (1,) * num_tokens}
        | others,
    )


def test_a_verified_draft_costs_a_prefill_and_the_rest_its_steps() -> None:
    (response,), num_counted = generate(CONFIG, drafted(60))
    assert (len(response.token_ids), response.num_verified) == (NUM_TOKENS, 60)
    assert response.finished_s == pytest.approx(0.001 * (10 + 60) + 0.01 * 40)
    assert num_counted == NUM_TOKENS


def test_the_last_token_is_drawn_whatever_the_draft_says() -> None:
    for num_tokens in (NUM_TOKENS, NUM_TOKENS + 50):
        (response,), _ = generate(CONFIG, drafted(num_tokens))
        assert (len(response.token_ids), response.num_verified) == (NUM_TOKENS, NUM_TOKENS - 1)
        assert response.finish_reason == "stop"


def test_what_is_not_drawn_again_is_read_and_decoded() -> None:
    other = CONFIG.model_copy(update={"draft_divergence": 1.0})
    (response,), num_counted = generate(other, drafted(60))
    assert (len(response.token_ids), response.num_verified, num_counted) == (100, 0, 100)
    assert response.finished_s == pytest.approx(0.001 * (10 + 60) + 0.01 * NUM_TOKENS)


def test_drafts_are_not_looked_at_unless_asked_for_nor_where_tokens_are_kept() -> None:
    plain = CONFIG.model_copy(update={"verify_deferred": False})
    (response,), _ = generate(plain, drafted(60))
    assert response.num_verified == 0
    assert response.finished_s == pytest.approx(0.001 * 10 + 0.01 * NUM_TOKENS)


def test_tokens_agree_as_far_as_the_divergence_says_on_average() -> None:
    config = CONFIG.model_copy(
        update={
            "draft_divergence": 0.05,
            "lengths": LengthModel(median_tokens=10_000, sigma=0),
            "max_batch": 2_000,
            "kv_capacity_tokens": 10**8,
        }
    )
    requests = [
        replace(drafted(2_000, index, seed=index), max_new_tokens=10_001) for index in range(2_000)
    ]
    found, _ = generate(config, *requests)
    mean = sum(response.num_verified for response in found) / len(found)
    assert mean == pytest.approx(0.95 / 0.05, rel=0.1)
    again, _ = generate(config, *requests)
    assert [each.num_verified for each in found] == [each.num_verified for each in again]


def test_a_response_leaves_its_tokens_if_it_has_any_and_is_no_episode() -> None:
    responses = [
        make_generated("", (5, 6), index=0),
        make_generated("", (), index=1),
        make_generated("", (7,), prompt_id="0/2"),
        make_generated("", (8,), index=2, episode=Episode(turns=(), ending=None)),
    ]
    assert drafts_from(responses, {"0/1"}) == {"0/1:0": (5, 6)}


def test_drafts_wait_until_their_prompt_is_asked_again() -> None:
    """A prompt that is deferred twice leaves what it had the last time, one that is trained
    nothing."""
    before = {"0/1:0": (1,), "0/2:0": (2,), "0/3:0": (3,)}
    result = RoundResult(
        groups=(),
        deferred=("0/2", "0/4"),
        dropped=(),
        filtered=("0/3",),
        generated=tuple(
            make_generated("", (9,), prompt_id=prompt_id) for prompt_id in ("0/2", "0/3", "0/4")
        ),
        migrated=(),
        scores=(),
    )
    assert drafts_after(before, result) == {"0/1:0": (1,), "0/2:0": (9,), "0/4:0": (9,)}


@pytest.fixture
def run() -> Callable[[float], PlayedRun]:
    """Ten steps of tail batching with this divergence."""
    work = replace(WORK, rewards=AT_ONCE)

    def played(divergence: float) -> PlayedRun:
        machine = replace(MACHINE, draft_divergence=divergence)
        return play(make_run(machine=machine, work=work, policy=TailBatchingConfig(), num_steps=10))

    return played


def test_verifying_changes_what_a_round_takes_and_nothing_that_is_trained_in_the_end(
    run: Callable[[float], PlayedRun],
) -> None:
    decoded, far, whole = (run(divergence) for divergence in (1.0, 0.01, 0.0))
    for played in (far, whole):
        trained = [{*step.trained} for step in played.steps]
        assert set.union(*trained) == set.union(*({*step.trained} for step in decoded.steps))
        assert all(step.num_trained_responses == 8 * 4 for step in played.planned.steps)
    long_s = [
        sum(step.rollout_s for step in played.steps if step.kind == "long")
        for played in (decoded, far, whole)
    ]
    assert long_s[0] > long_s[1] > long_s[2]


def test_every_line_is_played_with_every_distance_and_is_never_slower_for_more() -> None:
    small = replace(BY_MODEL["7B"], prompts=8, responses=2, num_devices=4, tasks=("math",))
    line = lines_of(small, RIVAL_LINES)["unbiased_packed"]
    part = part_of("v", small, line, diverging, DIVERGENCES, seed=0)
    found = part.figures({name: case.play() for name, case in part.cases.items()})
    assert found["v/0/over_plain"] == 1
    assert found["v/all/over_plain"] > max(1.1, found["v/100/over_plain"])
