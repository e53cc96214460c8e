"""Decode steps with less Python beside vLLM's own: the same schedules, tokens, log-probabilities,
blocks and cached prefixes, step for step. Both schedulers of vLLM are played, without a model."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import asdict
from typing import Any

import pytest
from fake_runner import STOP, FakeRunner, make_scheduler, make_vllm_config, make_vllm_request

from tasks.engines.vllm.adapter_slot import arguments_of, slot_requests
from tasks.engines.vllm.decode_steps import DecodeSteps
from tasks.learner.lora_config import LoraConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning")

# Any: vLLM's configuration, requests and outputs


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_vllm_config(tmp_path_factory.mktemp("shape"))


@pytest.fixture(scope="module")
def with_adapter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The configuration of an engine with room for an adapter."""
    arguments = arguments_of(LoraConfig(rank=4).engine_shape)
    return make_vllm_config(tmp_path_factory.mktemp("shape"), **arguments)


class World:
    """A scheduler with a fake model; ahead: batches that it computes ahead."""

    def __init__(self, vllm_config: Any, num_blocks: int, ahead: int, lean: bool) -> None:
        self.scheduler = make_scheduler(vllm_config, num_blocks, second_runner=bool(ahead))
        self.steps = DecodeSteps(self.scheduler) if lean else None
        self._runner = FakeRunner(self.scheduler)
        self._ahead = ahead
        shape = LoraConfig(rank=4).engine_shape
        has_adapter = vllm_config.lora_config and shape
        self._adapter = slot_requests(shape, "1.safetensors")[""] if has_adapter else None
        self._in_flight: deque[tuple[Any, Any]] = deque()
        self.requests: dict[str, Any] = {}
        self.logprobs: dict[str, list[float]] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=max_tokens, stop_token_ids=[STOP], logprobs=0, seed=len(self.requests)
        )
        request = make_vllm_request(name, prompt, params, adapter=self._adapter)
        self.requests[name] = request
        self.scheduler.add_request(request)
        self.logprobs[name] = self.steps.begin(name) if self.steps else []

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def step(self) -> tuple[Any, list[tuple[str, str]]]:
        """Schedule a batch and take the oldest one's tokens; returns the schedule and what ended,
        with its reason."""
        output = self.scheduler.schedule()
        self._in_flight.append((output, self._runner.compute(output)))
        ended: list[tuple[str, str]] = []
        while len(self._in_flight) > (self._ahead if output.num_scheduled_tokens else 0):
            scheduled, computed = self._in_flight.popleft()
            for outputs in self.scheduler.update_from_output(scheduled, computed).values():
                for each in outputs.outputs:
                    if not self.steps and each.new_logprobs is not None:
                        self.logprobs[each.request_id] += each.new_logprobs.logprobs[:, 0].tolist()
                    if each.finish_reason is not None:
                        ended.append((each.request_id, str(each.finish_reason)))
        return output, ended

    def state(self) -> dict[str, Any]:
        """Everything that a later step depends on."""
        manager = self.scheduler.kv_cache_manager
        of_requests = {
            name: (
                str(request.status), list(request._output_token_ids), request.num_tokens,
                request.num_computed_tokens, request.num_in_flight_tokens,
                request.num_output_placeholders, request.num_stale_output_tokens,
                request.num_preemptions, request.is_prefill_chunk, len(request.block_hashes),
                request.block_hashes,
            )
            for name, request in self.requests.items()
        }  # fmt: skip
        return {
            "requests": of_requests,
            "logprobs": self.logprobs,
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "blocks": {
                name: manager.get_block_ids(name)
                for name in self.requests
                if name in self.scheduler.requests
            },
            "free": manager.block_pool.get_num_free_blocks(),
            "cached": {*manager.block_pool.cached_block_hash_to_block._cache},
        }


def scheduled(output: Any) -> dict[str, Any]:
    """The parts of a schedule that a model runner reads."""
    return {
        "new": [new.req_id for new in output.scheduled_new_reqs],
        "cached": asdict(output.scheduled_cached_reqs),
        "tokens": output.num_scheduled_tokens,
        "order": [*output.num_scheduled_tokens],
        "total": output.total_num_scheduled_tokens,
        "preempted": output.preempted_req_ids,
        "finished": output.finished_req_ids,
        "zeroed": output.new_block_ids_to_zero,
        "spec": output.scheduled_spec_decode_tokens,
        "structured": (
            output.has_structured_output_requests, output.pending_structured_output_tokens,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("num_blocks", [30, 90])
@pytest.mark.parametrize("seed", range(6))
def test_a_lean_step_is_a_step_of_vllm(
    vllm_config: Any, seed: int, num_blocks: int, ahead: int
) -> None:
    play_both(vllm_config, seed, num_blocks, ahead)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("num_blocks", [30, 90])
def test_a_lean_step_of_requests_with_an_adapter_is_a_step_of_vllm(
    with_adapter: Any, num_blocks: int, ahead: int
) -> None:
    play_both(with_adapter, 6, num_blocks, ahead)


def play_both(vllm_config: Any, seed: int, num_blocks: int, ahead: int) -> None:
    """The same requests, aborts and resets in vLLM's steps and in lean ones."""
    draw = random.Random(seed)
    worlds = [World(vllm_config, num_blocks, ahead, lean) for lean in (False, True)]
    steps = worlds[1].steps
    assert steps is not None
    counted, num_whole = steps._schedule, [0]

    def schedule(throttle: bool) -> Any:
        num_whole[0] += 1
        return counted(throttle)

    steps._schedule = schedule
    num_added = 0
    for turn in range(400):
        action = draw.random()
        if action < 0.12 and turn < 300:
            prompt = [draw.randrange(8, 60) for _ in range(draw.choice([1, 15, 16, 17, 40, 70]))]
            most = draw.choice([1, 2, 16, 40, 58])
            for world in worlds:
                world.add(f"r{num_added}", prompt, most)
            num_added += 1
        elif action < 0.14 and worlds[0].scheduler.running:
            name = draw.choice(worlds[0].scheduler.running).request_id
            for world in worlds:
                world.abort(name)
        elif action < 0.15:
            for world in worlds:
                world.scheduler.reset_prefix_cache(reset_running_requests=True)
        (whole, whole_ended), (lean, lean_ended) = (world.step() for world in worlds)
        assert scheduled(whole) == scheduled(lean), turn
        assert whole_ended == lean_ended, turn
        assert worlds[0].state() == worlds[1].state(), turn
    assert num_added > 20
    assert 0 < num_whole[0] < (300 if num_blocks > 30 else 380), "most steps are lean"
    assert not worlds[0].scheduler.running, "all have ended"
