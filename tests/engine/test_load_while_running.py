"""Weights loaded while responses run: what runs goes on from its tokens as in a fresh engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from transformers import LlamaForCausalLM

from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.base import Attestation
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tests.engine.conftest import collect_all, generate, make_batch, make_request

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

PROBES = ((5, 9, 30, 41, 7, 22), (3, 4, 5, 6))
NUM_STEPS = 9  # before the load
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]


@pytest.fixture(scope="module")
def engine(start_engine: Callable[[str], VllmEngine]) -> VllmEngine:
    return start_engine("engine-l")


def begin(engine: VllmEngine, core: VllmCore, requests: Sequence[Request]) -> None:
    """Add these requests and play the steps before the load, in the stepping thread."""
    core.add(requests)
    for _ in range(NUM_STEPS):
        engine._thread.deliver(core.step())


def settle(engine: VllmEngine, core: VllmCore) -> None:
    """Process what a GPU's engine computes ahead, so that none of it is told of later."""
    engine._thread.deliver(core.settle())


async def interrupted(
    engine: VllmEngine,
    requests: Sequence[Request],
    weights: WeightsRef,
    running: Running = Running.INTERRUPT,
) -> tuple[Attestation, dict[str, Generated]]:
    """These requests with weights that are loaded after a few steps."""

    def load(core: VllmCore) -> Attestation:
        begin(engine, core, requests)
        settle(engine, core)
        return core.load(weights, PROBES, running)

    attested = await engine._thread.call("test", load, 30)
    return attested, await collect_all(engine, len(requests))


@pytest.mark.parametrize("running", [Running.INTERRUPT, Running.KEEP])
async def test_the_same_weights_under_another_name_change_no_draw(
    engine: VllmEngine, versions: Versions, running: Running
) -> None:
    """More responses than decode together: some have finished, some run, some wait."""
    requests = make_batch(24, max_new_tokens=40)
    requests[0] = replace(requests[0], max_new_tokens=2)
    alone = await engine.load_weights(versions[1][0], PROBES)
    plain = await generate(engine, requests)
    again = replace(versions[1][0], version=5)
    attested, done = await interrupted(engine, requests, again, running)
    assert attested == replace(alone, version=5)
    assert {name: response.token_ids for name, response in done.items()} == {
        name: response.token_ids for name, response in plain.items()
    }
    kinds = set()
    for response in done.values():
        spans = response.versions
        assert sum(span.num_tokens for span in spans) == len(response.token_ids)
        kinds.add(tuple(span.version for span in spans))
    assert kinds == {(1,), (1, 5), (5,)}
    assert (await engine.stats()).progress == {}


async def test_a_running_response_goes_on_as_a_fresh_engine_would_have_it(
    engine: VllmEngine, versions: Versions
) -> None:
    await engine.load_weights(versions[1][0], probes=())
    request = make_request("0/1", max_new_tokens=30, seed=3)
    _, done = await interrupted(engine, [request], versions[2][0])
    mixed = done["0/1:0"]
    assert [span.version for span in mixed.versions] == [1, 2]
    num_old = mixed.versions[0].num_tokens
    assert 0 < num_old < len(mixed.token_ids)
    kept = replace(
        request,
        kept_tokens=mixed.token_ids[:num_old],
        kept_logprobs=mixed.logprobs[:num_old],
        kept_versions=mixed.versions[:1],
    )
    resumed = (await generate(engine, [kept]))["0/1:0"]
    assert resumed.token_ids == mixed.token_ids
    assert resumed.versions == mixed.versions
    assert resumed.logprobs == pytest.approx(mixed.logprobs, abs=0.02)
    await engine.load_weights(versions[1][0], probes=())
    plain = (await generate(engine, [request]))["0/1:0"]
    assert plain.token_ids[:num_old] == mixed.token_ids[:num_old]
    assert plain.token_ids != mixed.token_ids, "the new weights say something else"


async def test_after_a_load_that_keeps_nothing_new_is_of_the_older_cache(
    engine: VllmEngine, versions: Versions
) -> None:
    """Siblings of what runs, one of which waited for its prompt when the weights came, answer as a
    fresh engine does. What runs is not computed again."""
    prompt = tuple(2 + (7 * step) % 90 for step in range(70))
    running, waiting, new, other = (
        make_request("0/1", index, prompt_tokens=prompt, max_new_tokens=24, seed=index)
        for index in range(4)
    )
    await engine.load_weights(versions[2][0], probes=())
    fresh = await generate(engine, [waiting, new, other])
    attested = await engine.load_weights(versions[2][0], PROBES)
    await engine.load_weights(versions[1][0], probes=())
    computed: list[int] = []

    def load(core: VllmCore) -> Attestation:
        begin(engine, core, [running])
        core.hold_new()
        core.add([waiting])
        settle(engine, core)
        held = core.load(versions[2][0], PROBES, Running.KEEP)
        (live,) = (live for live in core._live.values() if live.request is running)
        computed.append(live.scheduled.num_computed_tokens)
        core.add([new, other])
        return held

    assert await engine._thread.call("test", load, 30) == attested
    done = await collect_all(engine, 4)
    assert [span.version for span in done["0/1:0"].versions] == [1, 2]
    assert computed == [len(prompt) + done["0/1:0"].versions[0].num_tokens - 1]
    for name, response in fresh.items():
        assert done[name].versions == response.versions
        assert done[name].token_ids == response.token_ids
        assert done[name].logprobs == pytest.approx(response.logprobs, abs=0.02)
    assert (await engine.stats()).num_preemptions == 0


async def test_a_load_that_drains_leaves_no_response_of_two_versions(
    engine: VllmEngine, versions: Versions
) -> None:
    """More responses than decode together, and some that come while the first are finished."""
    await engine.load_weights(versions[1][0], probes=())
    first = make_batch(24, max_new_tokens=40)
    await engine._thread.call("test", lambda core: begin(engine, core, first), 30)
    loading = asyncio.create_task(engine.load_weights(versions[2][0], PROBES, Running.DRAIN))
    await asyncio.sleep(0)
    late = [make_request("0/9", index, seed=90 + index) for index in range(3)]
    await engine.submit(late)
    await engine.abort(["0/9:2"])
    attested = await loading
    done = await collect_all(engine, len(first) + len(late))
    kinds = {
        name: tuple(span.version for span in response.versions) for name, response in done.items()
    }
    assert kinds.pop("0/9:2") in ((), (2,))
    assert set(kinds.values()) == {(1,), (2,)}
    assert {kinds["0/9:0"], kinds["0/9:1"]} == {(2,)}
    assert attested.drained_s > 0
    assert replace(attested, drained_s=0.0) == await engine.load_weights(versions[2][0], PROBES)


async def test_a_load_preempts_nothing_that_is_counted(
    engine: VllmEngine, versions: Versions
) -> None:
    await engine.load_weights(versions[1][0], probes=())
    await engine.submit(make_batch(8, max_new_tokens=40))
    await engine.load_weights(replace(versions[1][0], version=6), (), Running.INTERRUPT)
    assert len(await collect_all(engine, 8)) == 8
    assert (await engine.stats()).num_preemptions == 0


async def test_an_abort_of_nothing_ends_the_wait_for_a_response(engine: VllmEngine) -> None:
    waiting = asyncio.create_task(engine.collect(60.0))
    await asyncio.sleep(0.1)
    await engine.abort(())
    async with asyncio.timeout(5):
        assert await waiting == []


async def test_probes_find_room_beside_what_is_kept(
    start_engine: Callable[..., VllmEngine], versions: Versions
) -> None:
    """Ten blocks of 32 tokens, nine of them in use: one response is computed again."""
    small = start_engine("engine-s", kv_cache_gb=10.5 * 32 * 512 / 2**30)
    assert (await small.stats()).kv_tokens == 10 * 32
    await small.load_weights(versions[1][0], probes=())
    requests = [make_request(f"0/{row}", max_new_tokens=72, seed=row) for row in range(3)]

    def load(core: VllmCore) -> Attestation:
        core.add(requests)
        while min(core.stats().progress.values()) < 50:
            assert core.step() == []
        settle(small, core)
        return core.load(versions[2][0], PROBES, Running.KEEP)

    attested = await small._thread.call("test", load, 60)
    done = await collect_all(small, 3)
    assert {tuple(span.version for span in each.versions) for each in done.values()} == {(1, 2)}
    assert (await small.load_weights(versions[2][0], PROBES)).probe_logprobs is not None
    assert attested.version == 2
