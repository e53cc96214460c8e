"""The real engine tells what it generates: report by report what the whole response says, and never
more behind than an interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from artifacts.new_tokens import NewTokens, PartialResponse, split_news
from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tests.engine.conftest import generate, make_batch

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

INTERVAL = 4
BATCH = make_batch(8, max_new_tokens=22)


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., VllmEngine]) -> VllmEngine:
    return start_engine("engine-0", report_tokens=INTERVAL)


async def told_and_over(
    engine: VllmEngine, requests: list[Request]
) -> tuple[dict[str, list[NewTokens]], dict[str, Generated]]:
    reports: dict[str, list[NewTokens]] = {}
    done: dict[str, Generated] = {}
    await engine.submit(requests)
    async with asyncio.timeout(60):
        while len(done) < len(requests):
            over, told = split_news(await engine.collect(5))
            for new in told:
                reports.setdefault(new.response_id, []).append(new)
            done |= {generated.response_id: generated for generated in over}
    return reports, done


def together(request: Request, told: list[NewTokens]) -> Generated:
    first = told[0].from_start(request)
    assert first is not None
    reported = PartialResponse(first)
    assert all(map(reported.extend, told[1:]))
    return reported.generated()


async def test_reports_put_together_are_the_response_but_for_its_last_tokens(
    engine: VllmEngine,
) -> None:
    reports, done = await told_and_over(engine, BATCH)
    for request in BATCH:
        whole, told = done[request.response_id], reports.get(request.response_id, [])
        known = together(request, told) if told else replace(whole, token_ids=(), logprobs=())
        num_told = len(known.token_ids)
        assert known.token_ids == whole.token_ids[:num_told]
        assert known.logprobs == whole.logprobs[:num_told]
        assert 0 < len(whole.token_ids) - num_told <= INTERVAL
        assert all(0 < len(new.token_ids) <= INTERVAL for new in told)
        assert known.submitted_s == whole.submitted_s
    assert len(reports) > len(BATCH) / 2


async def test_what_was_told_is_gone_on_with_elsewhere(engine: VllmEngine) -> None:
    """Kept tokens are never told again."""
    request = replace(BATCH[0], temperature=0.0, max_new_tokens=40)
    reports, done = await told_and_over(engine, [request])
    known = together(request, reports[request.response_id][:2])
    resumed = replace(
        request,
        kept_tokens=known.token_ids,
        kept_logprobs=known.logprobs,
        kept_versions=known.versions,
    )
    again, over = await told_and_over(engine, [resumed])
    whole = over[request.response_id]
    assert whole.token_ids == done[request.response_id].token_ids
    told = again[request.response_id]
    assert told[0].num_before == len(known.token_ids)
    joined = together(resumed, told)
    assert joined.token_ids == whole.token_ids[: len(joined.token_ids)]
    assert joined.logprobs == whole.logprobs[: len(joined.logprobs)]


async def test_reports_say_which_version_sampled_what(
    engine: VllmEngine, versions: dict[int, tuple[WeightsRef, object]]
) -> None:
    await engine.load_weights(versions[1][0], probes=())
    (request,) = make_batch(1, max_new_tokens=40, seed=3)

    def begin(core: VllmCore) -> list[NewTokens]:
        core.add([request])
        told = [new for _ in range(6) for new in split_news(core.step())[1]]
        core.load(versions[2][0], probes=(), running=Running.INTERRUPT)
        return told

    told = await engine._thread.call("begin", begin, 60)
    reports: list[NewTokens] = []
    over: list[Generated] = []
    async with asyncio.timeout(60):
        while not over:
            over, new = split_news(await engine.collect(5))
            reports += new
    known = together(request, [*told, *reports])
    spans = [(span.version, span.num_tokens) for span in over[0].versions]
    assert {span.version for span in known.versions} <= {1, 2}
    assert (known.versions[0].version, known.versions[0].num_tokens) == spans[0]
    assert known.token_ids == over[0].token_ids[: len(known.token_ids)]


async def test_reports_change_no_token(
    engine: VllmEngine, versions: dict[int, tuple[WeightsRef, object]]
) -> None:
    await engine.load_weights(versions[1][0], probes=())  # with an empty cache
    _, told = await told_and_over(engine, BATCH)

    def be_silent(core: VllmCore) -> None:
        core._report_tokens = 0

    await engine._thread.call("be_silent", be_silent, 60)
    await engine.load_weights(versions[1][0], probes=())
    plain = await generate(engine, BATCH)
    for name, each in told.items():
        assert (each.token_ids, each.logprobs) == (plain[name].token_ids, plain[name].logprobs)
