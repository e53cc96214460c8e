"""Rounds that are tried again: what another attempt left or other weights made is not trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from record_factories import make_request
from round_factories import ENGINE, make_plan, make_prompts, play

from artifacts.records import Request, Response, VersionSpan, WeightsRef
from tasks.engines.base import EngineLost
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.records import RoundResult
from tasks.scheduling.ledger import account_tokens

PLAN = replace(make_plan(domains=("a",) * 4, accept_per_prompt=4), step=4)


async def loaded(version: int, name: str = "engine-0") -> SimulatedEngine:
    engine = SimulatedEngine(name, ENGINE)
    await engine.load_weights(WeightsRef(version=version, path="", digest=""), probes=())
    return engine


def left_over(prompt_id: str = "p0", index: int = 0) -> Request:
    return make_request(
        prompt_id=prompt_id,
        index=index,
        prompt_tokens=make_prompts(PLAN)[prompt_id].token_ids,
        max_new_tokens=30,
    )


def recorded_of(result: RoundResult) -> list[Response]:
    scores = {(score.prompt_id, score.index): score for score in result.scores}
    told = [(response, (response.prompt_id, response.index)) for response in result.generated]
    return [Response(generated=response, score=scores[name]) for response, name in told]


def assert_of_version_3(result: RoundResult) -> None:
    assert len(result.groups) == 4
    assert {span.version for response in result.generated for span in response.versions} == {3}


def test_responses_that_an_earlier_attempt_left_uncollected_are_not_accepted() -> None:
    async def again() -> RoundResult:
        engine = await loaded(0)
        for prompt_id in make_prompts(PLAN):
            await engine.submit([left_over(prompt_id, index) for index in range(4)])
        await asyncio.sleep(100)
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        return await play(PLAN, [engine])

    assert_of_version_3(run_virtual(again()))


def test_a_wait_that_a_dead_attempt_left_open_takes_nothing() -> None:
    async def again() -> RoundResult:
        engine = await loaded(0)
        abandoned = asyncio.create_task(engine.collect(1000.0))
        await asyncio.sleep(1)
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        result = await play(PLAN, [engine], deadline_s=300)
        assert await abandoned == []
        return result

    assert_of_version_3(run_virtual(again()))


def test_what_another_attempt_asked_for_is_counted_and_not_taken() -> None:
    async def again() -> tuple[RoundResult, int, int]:
        engine = await loaded(3)
        await engine.submit([replace(left_over(name), attempt=3001) for name in ("p0", "p1")])
        await asyncio.sleep(100)
        before = (await engine.stats()).tokens_generated
        result = await play(PLAN, [engine], attempt=4001)
        return result, before, (await engine.stats()).tokens_generated

    result, before, after = run_virtual(again())
    assert_of_version_3(result)
    assert {response.attempt for response in result.generated} == {4001}
    assert len({response.response_id for response in result.generated}) == 16
    assert len(result.generated) == 16
    assert result.stale_tokens == before == 60
    assert sum(account_tokens(result.generated, stale_tokens=result.stale_tokens).values()) == after


def test_an_engine_with_other_weights_counts_as_lost_and_the_others_do_its_work() -> None:
    async def mixed() -> RoundResult:
        return await play(PLAN, [await loaded(2), await loaded(3, "engine-1")])

    result = run_virtual(mixed())
    assert_of_version_3(result)
    assert {response.engine for response in result.generated} == {"engine-1"}
    assert result.stale_tokens > 0


def test_without_an_engine_of_the_right_weights_the_round_asks_for_recovery() -> None:
    async def wrong() -> None:
        await play(PLAN, [await loaded(2)])

    told = r"no engine is left, engine-0 was the last: .*version=2.*allows versions range\(3, 4\)"
    with pytest.raises(EngineLost, match=told):
        run_virtual(wrong())


class LateEngine(SimulatedEngine):
    """Does not answer an abort in time, is taken for lost, and goes on with what it runs."""

    async def abort(self, response_ids: Sequence[str]) -> None:
        raise EngineLost(f"{self.name} did not answer in time")


def test_an_engine_that_was_only_late_takes_the_next_weights_and_plays_on() -> None:

    async def late() -> None:
        engine = LateEngine("engine-0", ENGINE)
        short = make_plan("short", domains=("a",) * 6, accept_prompts=4, accept_per_prompt=4)
        assert len((await play(short, [engine])).groups) == 4
        assert (await engine.stats()).progress
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        assert_of_version_3(await play(PLAN, [engine]))

    run_virtual(late())


@pytest.mark.parametrize("version", [2, 3])
def test_recorded_responses_of_other_weights_are_generated_again(version: int) -> None:
    async def resumed() -> tuple[RoundResult, RoundResult]:
        first = await play(replace(PLAN, step=version + 1), [await loaded(version)])
        recorded = recorded_of(first)
        return first, await play(PLAN, [await loaded(3)], recorded=recorded)

    first, again = run_virtual(resumed())
    assert_of_version_3(again)
    num_recorded = sum(len(response.token_ids) for response in first.generated)
    assert again.stale_tokens == (0 if version == 3 else num_recorded)


def test_a_response_of_two_versions_needs_both_to_be_allowed() -> None:
    async def two() -> RoundResult:
        first = await play(PLAN, [await loaded(3)])
        whole = recorded_of(first)[0]
        (span,) = whole.generated.versions
        parts = ((2, 1), (3, span.num_tokens - 1))
        spans = tuple(VersionSpan(version=version, num_tokens=count) for version, count in parts)
        mixed = replace(whole, generated=replace(whole.generated, versions=spans))
        return await play(PLAN, [await loaded(3)], recorded=[mixed])

    assert_of_version_3(run_virtual(two()))


def test_recorded_responses_to_prompts_that_the_round_does_not_ask_count_as_stale() -> None:
    """A round that was half played is planned anew, with fewer or other prompts."""

    async def resumed() -> tuple[RoundResult, RoundResult]:
        first = await play(PLAN, [await loaded(3)])
        fewer = replace(PLAN, prompts=PLAN.prompts[:2], accept_prompts=2)
        return first, await play(fewer, [await loaded(3)], recorded=recorded_of(first))

    first, again = run_virtual(resumed())
    others = [response for response in first.generated if response.prompt_id in ("p2", "p3")]
    assert {response.prompt_id for response in again.generated} == {"p0", "p1"}
    assert again.stale_tokens == sum(len(response.token_ids) for response in others) > 0
