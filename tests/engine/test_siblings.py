"""Responses to one prompt: what they compute of it, and that nothing else can be told of it.

The engine runs in float32, so that equal noise gives equal tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from transformers import LlamaForCausalLM

from artifacts.records import Generated, WeightsRef
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tests.engine.conftest import cores_only, generate, make_request

pytestmark = [
    pytest.mark.engine,
    cores_only,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

T = TypeVar("T")
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]
PROMPT_TOKENS = 60  # a block of 32, and one of 28
PROMPTS = [tuple(2 + (step * place) % 90 for place in range(PROMPT_TOKENS)) for step in (7, 11, 13)]
BATCH = [
    make_request(f"0/{row}", index, prompt_tokens=prompt, max_new_tokens=40, seed=4 * row + index)
    for row, prompt in enumerate(PROMPTS)
    for index in range(4)
]


def on_core(engine: VllmEngine, run: Callable[[VllmCore], T]) -> T:
    return asyncio.run(engine._thread.call("test", run, 60))


def play(core: VllmCore) -> dict[str, Generated]:
    """Everything to its end."""
    done: list[Generated] = []
    while core.busy:
        done += core.step()
    return {response.response_id: response for response in done}


def is_empty(core: VllmCore) -> bool:
    """Whether no block is held, and nobody is remembered."""
    usage = core._scheduler.get_kv_cache_usage()
    return usage == 0 and not core._siblings.waiting and not core._siblings._inside


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., VllmEngine]) -> VllmEngine:
    return start_engine("siblings", dtype="float32")


@pytest.fixture(scope="module")
def alone(engine: VllmEngine) -> dict[str, Generated]:
    """Each response, drawn with nothing beside it."""

    async def draw() -> dict[str, Generated]:
        responses: dict[str, Generated] = {}
        for request in BATCH:
            responses |= await generate(engine, [request])
        return responses

    return asyncio.run(draw())


def tokens_of(responses: Mapping[str, Generated]) -> dict[str, tuple[int, ...]]:
    return {name: response.token_ids for name, response in responses.items()}


@contextmanager
def counting(core: VllmCore) -> Iterator[Counter[str]]:
    """How many tokens each response computes from here on, by response id."""
    scheduler, counts = core._scheduler, Counter[str]()
    schedule = scheduler.schedule

    def watched(*arguments: Any) -> Any:  # Any: vLLM's
        plan = schedule(*arguments)
        names = {live.internal_id: name for name, live in core._live.items()}
        counts.update({names[key]: num for key, num in plan.num_scheduled_tokens.items()})
        return plan

    core._engine.reset_prefix_cache()
    scheduler.schedule = watched
    try:
        yield counts
    finally:
        del scheduler.schedule


def prompt_tokens(counts: Mapping[str, int], response: Generated) -> int:
    """Tokens of the prompt that this response computed."""
    return counts[response.response_id] - (len(response.token_ids) - 1)


def test_a_prompt_is_computed_once_and_each_sibling_draws_what_it_draws_alone(
    engine: VllmEngine, alone: dict[str, Generated]
) -> None:
    def run(core: VllmCore) -> tuple[Counter[str], dict[str, Generated]]:
        with counting(core) as counts:
            core.add(BATCH)
            return counts, play(core)

    counts, responses = on_core(engine, run)
    assert tokens_of(responses) == tokens_of(alone)
    for name, response in responses.items():
        assert response.logprobs == pytest.approx(alone[name].logprobs, abs=1e-3)
        expected = PROMPT_TOKENS if response.index == 0 else 1
        assert prompt_tokens(counts, response) == expected, name
    assert on_core(engine, is_empty)


def test_a_sibling_that_comes_later_computes_one_token_of_the_prompt_too(
    engine: VllmEngine, alone: dict[str, Generated]
) -> None:
    def run(core: VllmCore) -> tuple[Counter[str], dict[str, Generated]]:
        with counting(core) as counts:
            core.add(BATCH[:1])
            early = [response for _ in range(3) for response in core.step()]
            core.add(BATCH[1:2])
            return counts, {each.response_id: each for each in early} | play(core)

    counts, responses = on_core(engine, run)
    assert tokens_of(responses).items() <= tokens_of(alone).items()
    assert prompt_tokens(counts, responses[BATCH[1].response_id]) == 1


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_siblings_of_one_that_is_aborted_draw_what_they_draw_alone(
    engine: VllmEngine, alone: dict[str, Generated], num_steps: int
) -> None:
    def run(core: VllmCore) -> dict[str, Generated]:
        core.add(BATCH[:4])
        for _ in range(num_steps):
            assert not core.step()
        (aborted,) = core.abort([BATCH[0].response_id])
        assert len(aborted.token_ids) == num_steps
        return play(core)

    responses = on_core(engine, run)
    assert tokens_of(responses) == {
        request.response_id: alone[request.response_id].token_ids for request in BATCH[1:4]
    }
    assert on_core(engine, is_empty)


def test_siblings_that_are_aborted_before_they_begin_come_back_empty(engine: VllmEngine) -> None:
    def abort(core: VllmCore) -> list[Generated]:
        core.add(BATCH)
        return core.abort([request.response_id for request in BATCH])

    partial = on_core(engine, abort)
    assert [response.response_id for response in partial] == [
        request.response_id for request in BATCH
    ]
    assert {(response.finish_reason, response.token_ids) for response in partial} == {
        ("aborted", ())
    }
    assert on_core(engine, is_empty)


def test_a_reading_counts_those_that_have_not_begun(
    engine: VllmEngine, alone: dict[str, Generated]
) -> None:
    def read(core: VllmCore) -> tuple[dict[str, int], dict[str, Generated]]:
        core.add(BATCH)
        return dict(core.stats().progress), play(core)

    progress, responses = on_core(engine, read)
    assert progress == dict.fromkeys((request.response_id for request in BATCH), 0)
    assert tokens_of(responses) == tokens_of(alone)


def test_siblings_of_one_that_ends_with_its_first_token_compute_their_prompt(
    engine: VllmEngine, alone: dict[str, Generated]
) -> None:
    short = make_request("0/0", prompt_tokens=PROMPTS[0], max_new_tokens=1)

    def run(core: VllmCore) -> dict[str, Generated]:
        core.add([short, *BATCH[1:4]])
        return play(core)

    responses = tokens_of(on_core(engine, run))
    whole = tokens_of(alone)
    assert responses.pop(short.response_id) == whole[short.response_id][:1]
    assert responses == {request.response_id: whole[request.response_id] for request in BATCH[1:4]}
    assert on_core(engine, is_empty)


def test_a_second_submission_of_a_waiting_sibling_is_refused(engine: VllmEngine) -> None:
    def add_twice(core: VllmCore) -> None:
        core.add(BATCH)
        try:
            core.add(BATCH[1:2])
        finally:
            core.abort([request.response_id for request in BATCH])

    with pytest.raises(ValueError, match="once at a time"):
        on_core(engine, add_twice)
    assert on_core(engine, is_empty)


def test_new_weights_drop_those_that_wait_and_nothing_of_the_old_ones_is_shared(
    engine: VllmEngine, alone: dict[str, Generated], versions: Versions
) -> None:
    """Comes last: the responses drawn alone are of the weights before."""

    def run(core: VllmCore) -> tuple[bool, dict[str, Generated], dict[str, Generated]]:
        core.add(BATCH[:8])
        core.step()
        core.add(BATCH[8:])
        core.load(versions[1][0], probes=())
        dropped = is_empty(core) and not core.busy
        core.add(BATCH)
        together = play(core)
        one_by_one: dict[str, Generated] = {}
        for request in BATCH:
            core.add([request])
            one_by_one |= play(core)
        return dropped, together, one_by_one

    dropped, together, one_by_one = on_core(engine, run)
    assert dropped
    assert tokens_of(together) == tokens_of(one_by_one)
    assert tokens_of(together) != tokens_of(alone)
