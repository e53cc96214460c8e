"""The simulated engine keeps the contract of an Engine, and its clock is virtual."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from record_factories import make_request
from round_factories import make_plan, play

from artifacts.records import Generated, Request, Running, VersionSpan, WeightsRef
from tasks.engines.base import EngineLost
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel

FIXED = LengthModel(median_tokens=100, sigma=0)
PLAIN = SimulatedEngineConfig(
    step_s=0.01, step_s_per_sequence=0.0, prefill_s_per_token=0.0, lengths=FIXED
)


def request(
    index: int, max_new_tokens: int = 1000, kept: int = 0, num_prompt_tokens: int = 10
) -> Request:
    return make_request(
        index=index,
        prompt_tokens=(1,) * num_prompt_tokens,
        max_new_tokens=max_new_tokens,
        kept_tokens=(2,) * kept,
        kept_logprobs=(-2.0,) * kept,
        kept_versions=(VersionSpan(version=0, num_tokens=kept),) if kept else (),
    )


async def collect_all(engine: SimulatedEngine, count: int) -> list[Generated]:
    responses: list[Generated] = []
    while len(responses) < count:
        responses += await engine.collect(1000.0)
    return responses


def test_a_response_takes_the_time_of_its_decode_steps() -> None:
    async def generate() -> Generated:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0)])
        return (await collect_all(engine, 1))[0]

    response = run_virtual(generate())
    assert (len(response.token_ids), len(response.logprobs), response.finish_reason) == (
        100,
        100,
        "stop",
    )
    assert response.finished_s == pytest.approx(1.0)
    assert response.first_token_s == pytest.approx(0.01)


def test_the_bound_cuts_a_response() -> None:
    async def generate() -> Generated:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0, max_new_tokens=40)])
        return (await collect_all(engine, 1))[0]

    response = run_virtual(generate())
    assert (len(response.token_ids), response.finish_reason) == (40, "length")


def test_an_abort_hands_back_the_partial_response_once() -> None:
    async def abort() -> None:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0), request(1)])
        await asyncio.sleep(0.305)
        await engine.abort(["0/1:0", "0/1:7"])
        (partial,) = await engine.collect(0.1)
        assert (partial.index, len(partial.token_ids), partial.finish_reason) == (0, 30, "aborted")
        assert [one.index for one in await collect_all(engine, 1)] == [1]

    run_virtual(abort())


def test_a_load_drops_what_a_lost_coordinator_asked_for() -> None:
    async def lose_the_coordinator() -> None:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0, max_new_tokens=10), request(1), request(2)])
        await asyncio.sleep(0.5)  # the first has finished, and nobody has asked for it
        await engine.load_weights(WeightsRef(version=1, path="", digest=""), ())
        assert await engine.collect(10.0) == []
        await engine.submit([request(1)])
        assert [response.versions[0].version for response in await collect_all(engine, 1)] == [1]

    run_virtual(lose_the_coordinator())


def test_kept_tokens_are_not_generated_again() -> None:
    async def resume() -> None:
        engine = SimulatedEngine("engine-0", PLAIN, version=3)
        await engine.submit([request(0, kept=60)])
        (response,) = await collect_all(engine, 1)
        assert response.finished_s == pytest.approx(0.4)
        assert response.versions == (
            VersionSpan(version=0, num_tokens=60),
            VersionSpan(version=3, num_tokens=40),
        )
        assert sum(span.num_tokens for span in response.versions) == len(response.token_ids) == 100

    run_virtual(resume())


def test_a_larger_batch_decodes_more_slowly_but_gets_more_done() -> None:
    async def generate(count: int) -> float:
        engine = SimulatedEngine(
            "engine-0", PLAIN.model_copy(update={"step_s_per_sequence": 0.001})
        )
        await engine.submit([request(index) for index in range(count)])
        await collect_all(engine, count)
        return asyncio.get_running_loop().time()

    alone, together = run_virtual(generate(1)), run_virtual(generate(10))
    assert alone < together < 10 * alone


def test_a_length_follows_from_the_seed_alone_in_any_batch_engine_and_continuation() -> None:
    varied = PLAIN.model_copy(update={"lengths": LengthModel(median_tokens=100, sigma=1)})

    async def lengths(
        name: str, requests: list[Request], **changes: int
    ) -> tuple[dict[int, int], int]:
        engine = SimulatedEngine(name, varied.model_copy(update=changes), version=len(name))
        await engine.submit(requests)
        responses = await collect_all(engine, len(requests))
        found = {response.index: len(response.token_ids) for response in responses}
        return found, (await engine.stats()).num_preemptions

    requests = [replace(request(index), seed=index // 2) for index in range(12)]
    alone: dict[int, int] = {}
    for single in requests:
        alone |= run_virtual(lengths("engine-0", [single]))[0]
    assert len(set(alone.values())) > 6
    cramped, num_preemptions = run_virtual(
        lengths("another", requests[::-1], kv_capacity_tokens=1_100)
    )
    assert num_preemptions > 0
    assert cramped == alone
    num_kept = min(alone.values()) - 1
    halves = [replace(request(one.index, kept=num_kept), seed=one.seed) for one in requests]
    assert run_virtual(lengths("third", halves))[0] == alone
    other = [replace(one, seed=one.seed + 100) for one in requests]
    assert run_virtual(lengths("engine-0", other))[0] != alone


def test_a_full_cache_preempts_and_everything_still_finishes() -> None:
    async def generate() -> None:
        engine = SimulatedEngine("engine-0", PLAIN.model_copy(update={"kv_capacity_tokens": 400}))
        await engine.submit([request(index, max_new_tokens=300) for index in range(20)])
        responses = await collect_all(engine, 20)
        assert {len(one.token_ids) for one in responses} == {100}
        stats = await engine.stats()
        assert stats.num_preemptions > 0
        assert stats.tokens_generated == 2000
        assert 0.9 < stats.kv_usage_max <= 1.1, "a step may overshoot the room by its batch"

    run_virtual(generate())


def test_a_request_that_can_never_fit_is_refused() -> None:
    async def submit() -> None:
        await SimulatedEngine(
            "engine-0", PLAIN.model_copy(update={"kv_capacity_tokens": 400})
        ).submit([request(0)])

    with pytest.raises(ValueError, match=r"KV cache \(400 tokens\), got 1010"):
        run_virtual(submit())


def test_loading_weights_drops_what_an_earlier_attempt_left() -> None:
    async def load() -> None:
        engine, weights = (
            SimulatedEngine("engine-0", PLAIN),
            WeightsRef(version=5, path="", digest=""),
        )
        await engine.submit([request(0, max_new_tokens=20), request(1)])
        await asyncio.sleep(0.5)  # one has finished, one runs, nobody has collected
        await engine.load_weights(weights, probes=())
        stats = await engine.stats()
        assert stats.progress == {}
        assert await engine.collect(10.0) == []

    run_virtual(load())


def test_a_wait_that_began_before_the_weights_came_takes_nothing_of_what_follows() -> None:
    async def abandon() -> None:
        engine = SimulatedEngine("engine-0", PLAIN)
        abandoned = asyncio.create_task(engine.collect(1000.0))
        await asyncio.sleep(0.1)
        await engine.load_weights(WeightsRef(version=1, path="", digest=""), probes=())
        await engine.submit([request(0)])
        assert [response.index for response in await collect_all(engine, 1)] == [0]
        assert await abandoned == []

    run_virtual(abandon())


def test_weights_mark_the_tokens() -> None:
    async def load() -> None:
        engine = SimulatedEngine("engine-0", PLAIN)
        weights = WeightsRef(version=5, path="", digest="")
        attestation = await engine.load_weights(weights, probes=((1, 2, 3),))
        assert (attestation.version, attestation.probe_logprobs) == (5, None)
        await engine.submit([request(1)])
        (response,) = await collect_all(engine, 1)
        assert response.versions == (VersionSpan(version=5, num_tokens=100),)

    run_virtual(load())


def test_a_lost_engine_ends_every_call_with_engine_lost() -> None:
    async def lose() -> None:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0)])
        asyncio.get_running_loop().call_later(0.5, engine.fail)
        for call in (engine.collect(10.0), engine.submit([]), engine.abort([]), engine.stats()):
            with pytest.raises(EngineLost, match="engine-0 is gone"):
                await call

    run_virtual(lose())


def test_responses_of_a_prompt_resemble_each_other() -> None:
    same = LengthModel(prompt_share=1.0)
    assert len({same.tokens("0/1", index) for index in range(8)}) == 1
    assert len({same.tokens(f"0/{row}", 0) for row in range(8)}) == 8
    assert len({LengthModel(prompt_share=0.5).tokens("0/1", index) for index in range(8)}) == 8


def test_collect_waits_no_longer_than_it_is_told() -> None:
    async def wait() -> float:
        assert await SimulatedEngine("engine-0", PLAIN).collect(7.0) == []
        return asyncio.get_running_loop().time()

    assert run_virtual(wait()) == pytest.approx(7.0)


def test_a_virtual_hour_passes_at_once() -> None:
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started_s = time.monotonic()
    assert run_virtual(sleep()) == pytest.approx(3600)
    assert time.monotonic() - started_s < 5


def test_a_wait_that_no_timer_ends_is_reported() -> None:
    with pytest.raises(RuntimeError, match="no timer is set"):
        run_virtual(asyncio.Event().wait())


def test_a_simulated_round_takes_the_virtual_time_of_its_longest_response() -> None:
    async def generate() -> float:
        await play(make_plan(domains=("a",) * 4), [SimulatedEngine("engine-0", PLAIN)])
        return asyncio.get_running_loop().time()

    assert 1.0 <= run_virtual(generate()) < 40.0


def test_what_runs_at_a_load_may_go_on_with_the_new_version() -> None:
    """A response that has finished and one that waits for room are kept, too; what was computed is
    computed again."""
    prefilling = PLAIN.model_copy(update={"prefill_s_per_token": 0.001, "max_batch": 1})

    async def load() -> list[Generated]:
        engine = SimulatedEngine("engine-0", prefilling)
        await engine.submit([request(0), request(1), request(2)])
        await asyncio.sleep(1.5)
        await engine.load_weights(WeightsRef(version=1, path="", digest=""), (), Running.INTERRUPT)
        return await collect_all(engine, 3)

    finished, running, waiting = run_virtual(load())
    assert [
        [(span.version, span.num_tokens) for span in response.versions]
        for response in (finished, running, waiting)
    ] == [[(0, 100)], [(0, 48), (1, 52)], [(1, 100)]]
    assert finished.finished_s == pytest.approx(1.01)
    assert running.finished_s == pytest.approx(2.02 + 0.01 + 0.048)


def spans_of(response: Generated) -> list[tuple[int, int]]:
    return [(span.version, span.num_tokens) for span in response.versions]


def test_what_runs_at_a_load_may_go_on_over_the_cache_of_the_older_version() -> None:
    prefilling = PLAIN.model_copy(update={"prefill_s_per_token": 0.001, "max_batch": 1})

    async def load() -> list[Generated]:
        engine = SimulatedEngine("engine-0", prefilling)
        await engine.submit([request(0), request(1), request(2)])
        await asyncio.sleep(1.5)
        await engine.load_weights(WeightsRef(version=1, path="", digest=""), (), Running.KEEP)
        return await collect_all(engine, 3)

    responses = run_virtual(load())
    assert [*map(spans_of, responses)] == [[(0, 100)], [(0, 48), (1, 52)], [(1, 100)]]
    assert responses[1].finished_s == pytest.approx(2.02)


def test_what_runs_at_a_load_may_be_finished_first() -> None:
    """What waits for room then, and what is submitted meanwhile, has nothing of the old version."""

    async def load() -> tuple[float, list[Generated]]:
        engine = SimulatedEngine("engine-0", PLAIN.model_copy(update={"max_batch": 1}))
        await engine.submit([request(0), request(1), request(2)])
        await asyncio.sleep(1.5)
        new = WeightsRef(version=1, path="", digest="")
        loading = asyncio.create_task(engine.load_weights(new, (), Running.DRAIN))
        await asyncio.sleep(0.1)
        await engine.submit([request(3), request(4)])
        await engine.abort(["0/1:3"])
        return (await loading).drained_s, await collect_all(engine, 5)

    drained_s, responses = run_virtual(load())
    assert drained_s == pytest.approx(0.5)
    whole = [response for response in responses if response.finish_reason == "stop"]
    assert [*map(spans_of, whole)] == [[(0, 100)], [(0, 100)], [(1, 100)], [(1, 100)]]
    (stopped,) = (response for response in responses if response.finish_reason == "aborted")
    assert (stopped.index, stopped.token_ids) == (3, ())


def test_a_load_that_drops_overtakes_one_that_drains() -> None:
    async def load() -> list[Generated]:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0)])
        await asyncio.sleep(0.5)
        late = WeightsRef(version=1, path="", digest="")
        loading = asyncio.create_task(engine.load_weights(late, (), Running.DRAIN))
        await asyncio.sleep(0.1)
        await engine.load_weights(WeightsRef(version=2, path="", digest=""), ())
        with pytest.raises(EngineLost, match="engine-0 has loaded other weights meanwhile"):
            await loading
        await engine.submit([request(1)])
        return await collect_all(engine, 1)

    (response,) = run_virtual(load())
    assert spans_of(response) == [(2, 100)]


def test_an_abort_of_nothing_ends_the_wait_for_a_response() -> None:
    async def wait() -> float:
        engine = SimulatedEngine("engine-0", PLAIN)
        await engine.submit([request(0)])
        waiting = asyncio.create_task(engine.collect(1000.0))
        await asyncio.sleep(0.2)
        await engine.abort(())
        assert await waiting == []
        assert (await collect_all(engine, 1))[0].finish_reason == "stop"
        return asyncio.get_running_loop().time()

    assert run_virtual(wait()) == pytest.approx(1.0)


def test_timers_of_one_moment_end_in_the_order_in_which_they_were_set() -> None:
    async def ended(moments: list[float]) -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        others = [loop.call_at(moment, order.append, -1) for moment in (0.5, 2.0, 0.25, 0.75)]
        for place, moment in enumerate(moments):
            loop.call_at(moment, order.append, place)
        for other in others:
            other.cancel()
        await asyncio.sleep(5.0)
        return order

    moments = [2.0, 1.0, 2.0, 1.0, 1.0, 3.0, 2.0, 1.0, 3.0]
    assert run_virtual(ended(moments)) == [1, 3, 4, 7, 0, 2, 6, 5, 8]
