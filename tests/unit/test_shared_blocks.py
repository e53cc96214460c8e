"""What vLLM's block manager gives to a response whose sibling has computed their prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from record_factories import make_request

from artifacts.records import Request, ShownPicture
from tasks.engines.vllm.siblings import Siblings

BLOCK = 32

# Any: vLLM's manager, requests and blocks


class Scheduler:
    """vLLM's block manager, and as much of its scheduler as asks it."""

    def __init__(self, num_blocks: int = 20) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        plain = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        self.kv_cache_config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], plain)],
        )
        self.cache_config = SimpleNamespace(enable_prefix_caching=True)
        self.kv_cache_manager = KVCacheManager(
            self.kv_cache_config,
            max_model_len=512,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def request(self, name: str, tokens: list[int], picture: str = "") -> Any:
        """picture: content of one whose two tokens come first."""
        from vllm import SamplingParams
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
        from vllm.v1.request import Request as VllmRequest

        params, place = SamplingParams(max_tokens=99), PlaceholderRange(offset=0, length=2)
        feature = MultiModalFeatureSpec(None, "image", picture, place, picture)
        shown = [feature] if picture else None
        return VllmRequest(name, tokens, params, None, mm_features=shown, block_hasher=self._hasher)

    def begin(self, request: Any) -> int:
        """Schedule a request as vLLM does; returns how many tokens it has to compute."""
        blocks, num_found, _ = self.kv_cache_manager.get_computed_blocks(request)
        num_new: int = request.num_tokens - num_found
        found = self.kv_cache_manager.allocate_slots(
            request, num_new, num_found, new_computed_blocks=blocks
        )
        assert found is not None
        set_status(request, "RUNNING")
        request.num_computed_tokens = request.num_tokens
        return num_new

    def blocks_of(self, request: Any) -> list[int]:
        (ids,) = self.kv_cache_manager.get_block_ids(request.request_id)
        return list(ids)

    def copies(self) -> list[tuple[int, int]]:
        """(source, copy) of the step's copies, which are made and let go."""
        copies, kept = self.kv_cache_manager.take_kv_cache_block_copies()
        self.kv_cache_manager.block_pool.free_blocks(kept)
        return [(copy.src_block_id, copy.dst_block_id) for copy in copies]


def set_status(request: Any, name: str) -> None:
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus[name]


def draw_token(request: Any) -> None:
    """What a step leaves behind that computed everything there was."""
    request.append_output_token_ids(7)


def asked(tokens: list[int], index: int = 1) -> Request:
    return make_request(prompt_id="0/0", index=index, prompt_tokens=tuple(tokens), max_new_tokens=9)


@pytest.mark.parametrize("num_tokens", [20, 33, 60, 64, 95])
def test_a_sibling_computes_the_last_token_of_the_prompt_alone(num_tokens: int) -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    tokens = list(range(num_tokens))
    first, second = scheduler.request("a", tokens), scheduler.request("b", tokens)
    siblings.enter(first)
    assert scheduler.begin(first) == num_tokens
    draw_token(first)
    siblings.enter(second)
    assert scheduler.begin(second) == 1
    num_started = (num_tokens - 1) % BLOCK
    (*whole, source), (*shared, copy) = scheduler.blocks_of(first), scheduler.blocks_of(second)
    assert shared == whole
    assert source != copy
    assert scheduler.copies() == ([(source, copy)] if num_started else [])
    for request in (first, second):
        scheduler.kv_cache_manager.free(request)
    assert scheduler.kv_cache_manager.usage == 0


@pytest.mark.parametrize(("picture", "num_computed"), [("a", 1), ("b", 20)])
def test_equal_tokens_share_blocks_if_they_show_the_same_picture(
    picture: str, num_computed: int
) -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    tokens = list(range(20))
    first, second = (
        scheduler.request(name, tokens, shown) for name, shown in (("1", "a"), ("2", picture))
    )
    siblings.enter(first)
    waiting = replace(
        asked(tokens), pictures=(ShownPicture(content=picture, begin=0, rows=1, columns=2),)
    )
    assert siblings.hold(waiting, 0.0) == (picture == "a")
    scheduler.begin(first)
    draw_token(first)
    siblings.enter(second)
    assert scheduler.begin(second) == num_computed


def test_blocks_that_are_written_belong_to_one_request_each() -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    requests = [scheduler.request(name, list(range(60))) for name in "abcd"]
    for request in requests:
        siblings.enter(request)
        scheduler.begin(request)
        draw_token(request)
        scheduler.copies()
    written = [scheduler.blocks_of(request)[60 // BLOCK :] for request in requests]
    assert len({block for blocks in written for block in blocks}) == len(requests)
    assert len({scheduler.blocks_of(request)[0] for request in requests}) == 1


def test_a_copy_that_is_still_to_be_made_is_not_copied_again() -> None:
    """Two enter in one step, and by the second one's turn their elder sibling was preempted."""
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    first, second, third = (scheduler.request(name, list(range(60))) for name in "abc")
    for request in (first, second, third):
        siblings.enter(request)
    scheduler.begin(first)
    draw_token(first)
    assert scheduler.begin(second) == 1
    set_status(first, "PREEMPTED")
    assert scheduler.begin(third) == 60 - BLOCK
    assert len(scheduler.copies()) == 1


def test_a_source_that_leaves_in_the_step_of_its_copy_keeps_its_block_until_the_copy_is_made() -> (
    None
):
    scheduler = Scheduler(num_blocks=6)  # one of them is vLLM's null block
    siblings = Siblings(scheduler)
    first, second, other = (
        scheduler.request(name, list(range(start, start + 60)))
        for name, start in (("a", 0), ("b", 0), ("c", 200))
    )
    siblings.enter(first)
    scheduler.begin(first)
    draw_token(first)
    source = scheduler.blocks_of(first)[1]
    siblings.enter(second)
    scheduler.begin(second)
    scheduler.kv_cache_manager.free(first)
    scheduler.begin(other)
    assert source not in scheduler.blocks_of(other)
    assert scheduler.copies() == [(source, scheduler.blocks_of(second)[1])]


def test_a_preempted_sibling_that_has_generated_takes_whole_blocks() -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    first, second = (scheduler.request(name, list(range(60))) for name in "ab")
    for request in (first, second):
        siblings.enter(request)
    scheduler.begin(first)
    draw_token(first)
    draw_token(second)
    assert scheduler.begin(second) == 61 - BLOCK
    assert scheduler.copies() == []


def test_who_has_no_sibling_computes_what_is_not_a_whole_block() -> None:
    scheduler = Scheduler()
    Siblings(scheduler)
    first, other = (scheduler.request(name, list(range(60))) for name in "ab")
    assert scheduler.begin(first) == 60
    assert scheduler.begin(other) == 60 - BLOCK
    assert scheduler.copies() == []


@pytest.mark.parametrize("num_siblings", [1, 2])
def test_the_started_block_lasts_as_long_as_a_sibling_that_has_it(num_siblings: int) -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    first, *others, last = (
        scheduler.request(name, list(range(60))) for name in "abc"[: num_siblings + 1]
    )
    for request in (first, *others):
        siblings.enter(request)
        scheduler.begin(request)
        draw_token(request)
        scheduler.copies()
    scheduler.kv_cache_manager.free(first)
    set_status(first, "FINISHED_STOPPED")
    siblings.leave(first)
    siblings.enter(last)
    assert scheduler.begin(last) == (1 if others else 60 - BLOCK)


def test_siblings_wait_until_one_is_past_the_prompt() -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    tokens = list(range(60))
    assert not siblings.hold(asked(tokens, index=0), submitted_s=0.0)
    first = scheduler.request("a", tokens)
    siblings.enter(first)
    assert siblings.hold(asked(tokens), submitted_s=3.0)
    assert not siblings.hold(asked(tokens[1:]), submitted_s=3.0), "another prompt"
    assert siblings.take_ready() == []
    draw_token(first)
    assert not siblings.hold(asked(tokens, index=2), submitted_s=4.0), "the prompt is computed"
    (ready,) = siblings.take_ready()
    assert (ready.request, ready.submitted_s) == (asked(tokens), 3.0)
    assert not siblings.waiting


def test_who_waited_for_one_that_was_aborted_is_ready() -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    first = scheduler.request("a", list(range(60)))
    siblings.enter(first)
    assert siblings.hold(asked(list(range(60))), submitted_s=0.0)
    siblings.leave(first)
    (ready,) = siblings.take_ready()
    assert ready.request.index == 1


def test_those_that_are_taken_are_those_that_were_named() -> None:
    scheduler = Scheduler()
    siblings = Siblings(scheduler)
    tokens = list(range(60))
    siblings.enter(scheduler.request("a", tokens))
    waiting = [asked(tokens, index) for index in (1, 2, 3)]
    for request in waiting:
        siblings.hold(request, submitted_s=0.0)
    taken = siblings.take({waiting[1].response_id, "0/9:0"})
    assert [each.request.index for each in taken] == [2]
    assert [each.request.index for each in siblings.waiting] == [1, 3]


def no_prefix_caching(scheduler: Scheduler) -> None:
    scheduler.cache_config.enable_prefix_caching = False


def sliding_window(scheduler: Scheduler) -> None:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

    window = SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=64
    )
    scheduler.kv_cache_config.kv_cache_groups = [KVCacheGroupSpec(["layer"], window)]


@pytest.mark.parametrize("forget", [no_prefix_caching, sliding_window])
def test_where_blocks_are_not_kept_nobody_waits_and_vllm_is_left_alone(
    forget: Callable[[Scheduler], None],
) -> None:
    scheduler = Scheduler()
    forget(scheduler)
    check_off(scheduler)


def test_on_a_gpu_nobody_waits_and_vllm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.vllm.siblings.on_cpu", lambda: False)
    check_off(Scheduler())


def check_off(scheduler: Scheduler) -> None:
    siblings = Siblings(scheduler)
    first = scheduler.request("a", list(range(60)))
    siblings.enter(first)
    assert not siblings.hold(asked(list(range(60))), submitted_s=0.0)
    assert "get_computed_blocks" not in vars(scheduler.kv_cache_manager)
    siblings.leave(first)
