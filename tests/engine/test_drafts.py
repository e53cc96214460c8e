"""Drafts: what is verified is what would have been decoded, whatever the draft says.

The engine runs in float32, so that equal noise gives equal tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
from transformers import LlamaForCausalLM

from artifacts.new_tokens import NewTokens, parted
from artifacts.records import Generated, Request, Running, VersionSpan, WeightsRef
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tests.engine.conftest import generate, make_request

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

T = TypeVar("T")
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]
Responses = Mapping[str, Generated]
MOST_TOKENS = 70  # two blocks of 32 and more
PROMPTS = [tuple(2 + (step * place) % 90 for place in range(60)) for step in (7, 11, 13)]
BATCH = [
    make_request(
        f"0/{row}",
        index,
        prompt_tokens=prompt,
        max_new_tokens=MOST_TOKENS,
        seed=4 * row + index,
        temperature=(1.0, 0.7)[index % 2],
        top_p=(1.0, 1.0, 0.8)[index % 3],
    )
    for row, prompt in enumerate(PROMPTS)
    for index in range(4)
]


def on_core(engine: VllmEngine, run: Callable[[VllmCore], T]) -> T:
    return asyncio.run(engine._thread.call("test", run, 60))


def play(engine: VllmEngine, requests: list[Request]) -> Responses:
    return asyncio.run(generate(engine, requests))


def with_drafts(drafts: Responses, wrong_at: int | None = None) -> list[Request]:
    """The batch, each with what it has here for a draft; wrong_at: where another token stands."""
    found: list[Request] = []
    for request in BATCH:
        draft = list(drafts[request.response_id].token_ids)
        if wrong_at is not None and wrong_at < len(draft):
            draft[wrong_at] = 1 + draft[wrong_at] % 90
        found.append(replace(request, draft_tokens=tuple(draft)))
    return found


def assert_alike(found: Responses, expected: Responses) -> None:
    """The same tokens, with the same log-probabilities, and as they ended."""
    assert found.keys() == expected.keys()
    for name, response in found.items():
        assert response.token_ids == expected[name].token_ids
        assert response.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)
        assert response.finish_reason == expected[name].finish_reason
        assert response.text == expected[name].text
        assert sum(span.num_tokens for span in response.versions) == len(response.token_ids)


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., VllmEngine]) -> VllmEngine:
    return start_engine("drafts", dtype="float32", verify_deferred=True)


@pytest.fixture(scope="module")
def decoded(engine: VllmEngine) -> Responses:
    """Each response, token by token."""
    responses = play(engine, BATCH)
    reasons = {response.finish_reason for response in responses.values()}
    assert reasons == {"stop", "length"}, "both ends must be tried"
    return responses


def test_a_right_draft_is_verified_to_its_end(engine: VllmEngine, decoded: Responses) -> None:
    found = play(engine, with_drafts(decoded))
    assert_alike(found, decoded)
    # the last token is drawn, draft or not
    assert all(each.num_verified == len(each.token_ids) - 1 for each in found.values())


@pytest.mark.parametrize("wrong_at", [0, 1, 31, 36, 68])
def test_from_the_first_other_token_on_it_is_decoded(
    engine: VllmEngine, decoded: Responses, wrong_at: int
) -> None:
    found = play(engine, with_drafts(decoded, wrong_at))
    assert_alike(found, decoded)
    for response in found.values():
        assert response.num_verified == min(wrong_at, len(response.token_ids) - 1)


def test_a_draft_may_be_a_part_or_too_long(engine: VllmEngine, decoded: Responses) -> None:
    requests = with_drafts(decoded)
    parts = [replace(each, draft_tokens=each.draft_tokens[:20]) for each in requests]
    assert_alike(play(engine, parts), decoded)
    longer = [replace(each, draft_tokens=(*each.draft_tokens, *range(5, 90))) for each in requests]
    assert_alike(play(engine, longer), decoded)


def test_siblings_with_one_draft_draw_what_is_theirs(
    engine: VllmEngine, decoded: Responses
) -> None:
    """None of them may take a place from the cache without having drawn there."""
    draft = decoded["0/0:0"].token_ids
    requests = [replace(each, draft_tokens=draft) for each in BATCH if each.prompt_id == "0/0"]
    found = play(engine, requests)
    assert_alike(found, {name: decoded[name] for name in found})
    assert found["0/0:0"].num_verified == len(draft) - 1


def test_only_what_is_not_verified_is_decoded(engine: VllmEngine, decoded: Responses) -> None:
    """The prompt comes from the cache in whole blocks, and a verified response takes one step."""

    def count(core: VllmCore) -> tuple[int, int]:
        core._engine.reset_prefix_cache()
        core.add(with_drafts(decoded))
        computed, steps, scheduler = 0, 0, core._scheduler
        schedule = scheduler.schedule

        def counted(throttles: bool) -> object:
            nonlocal computed
            output = schedule(throttles)
            computed += output.total_num_scheduled_tokens
            return output

        scheduler.schedule = counted
        while core.busy:
            core.step()
            steps += 1
        scheduler.schedule = schedule
        return computed, steps

    computed, steps = on_core(engine, count)
    num_drafted = sum(len(response.token_ids) for response in decoded.values())
    own_blocks = 3 * 32  # of each prompt's first response
    rests = len(BATCH) * (60 - 32)
    assert computed <= num_drafted + own_blocks + rests
    assert steps <= 3  # 512 tokens each
    assert on_core(engine, lambda core: core._scheduler.get_kv_cache_usage()) == 0


def test_drafts_of_other_weights_give_what_these_weights_draw(
    engine: VllmEngine, decoded: Responses, versions: Versions
) -> None:
    """Beside responses that have none, in chunks of a prefill, and when they are begun anew."""
    ref = versions[1][0]
    asyncio.run(engine.load_weights(ref, ((5, 9, 30),)))
    expected = play(engine, BATCH)
    assert expected["0/0:0"].token_ids != decoded["0/0:0"].token_ids
    drafted = with_drafts(decoded)
    mixed = [
        each if place % 2 else own
        for place, (each, own) in enumerate(zip(drafted, BATCH, strict=True))
    ]
    found = play(engine, mixed)
    assert_alike(found, expected)
    assert {span.version for each in found.values() for span in each.versions} == {1}

    # weights that are loaded while drafts are verified: what was drawn along them counts no more
    def load(core: VllmCore) -> None:
        core.add(with_drafts(expected))
        core.step()
        assert core.busy, "not everything may be verified in one step"
        core.load(versions[2][0], ((5, 9, 30),), Running.DROP)

    on_core(engine, load)
    anew = play(engine, BATCH)
    assert_alike(play(engine, with_drafts(expected)), anew)


def test_a_response_that_is_stopped_while_it_is_verified_has_nothing(
    engine: VllmEngine, decoded: Responses
) -> None:
    def stop(core: VllmCore) -> list[Generated]:
        core.add(with_drafts(decoded)[:2])
        return core.abort([BATCH[0].response_id, BATCH[1].response_id])

    stopped = on_core(engine, stop)
    assert [each.finish_reason for each in stopped] == ["aborted", "aborted"]
    assert all(each.token_ids == () and each.versions == () for each in stopped)
    assert not on_core(engine, lambda core: core.busy)


def test_what_is_verified_is_reported_with_what_is_decoded(
    start_engine: Callable[..., VllmEngine],
) -> None:
    engine = start_engine("told", dtype="float32", verify_deferred=True, report_tokens=3)

    def tell(core: VllmCore, requests: list[Request]) -> tuple[list[Generated], list[NewTokens]]:
        core.add(requests)
        done: list[Generated] = []
        told: list[NewTokens] = []
        while core.busy:
            over, news = parted(core.step())
            done += over
            told += news
        return done, told

    decoded, _ = on_core(engine, lambda core: tell(core, BATCH))
    by_id = {response.response_id: response for response in decoded}
    found, told = on_core(engine, lambda core: tell(core, with_drafts(by_id, wrong_at=30)))
    assert_alike({response.response_id: response for response in found}, by_id)
    for request in BATCH:
        news = [each for each in told if each.response_id == request.response_id]
        whole = by_id[request.response_id]
        tokens = tuple(token for each in news for token in each.token_ids)
        assert tokens == whole.token_ids[: len(tokens)]
        assert [each.num_before for each in news] == [
            sum(len(before.token_ids) for before in news[:place]) for place in range(len(news))
        ]
        assert all(
            each.versions == (VersionSpan(version=0, num_tokens=len(each.token_ids)),)
            for each in news
        )
    assert any(each.num_before == 0 and len(each.token_ids) > 30 for each in told)


def test_tensor_parallel_ranks_verify_alike(
    start_engine: Callable[..., VllmEngine],
) -> None:
    engine = start_engine("ranks", dtype="float32", verify_deferred=True, tensor_parallel_size=2)
    expected = play(engine, BATCH[:4])
    by_id = dict(expected)
    requests = [replace(each, draft_tokens=by_id[each.response_id].token_ids) for each in BATCH[:4]]
    found = play(engine, requests)
    assert_alike(found, expected)
    assert all(each.num_verified == len(each.token_ids) - 1 for each in found.values())
