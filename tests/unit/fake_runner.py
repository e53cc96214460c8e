"""vLLM's schedulers without a model: what its model runners keep of a request, and tokens that are
a function of a request's seed and the position alone, as noise is."""

from __future__ import annotations

import json
import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

# Any: vLLM's configuration, schedulers, requests and outputs

BLOCK = 16
STOP = 7
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 512, "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def make_vllm_config(folder: Path, **more: object) -> Any:
    """The configuration of an engine of 12 responses of up to 128 tokens. more: further arguments
    of vLLM's EngineArgs."""
    from vllm import EngineArgs

    (folder / "config.json").write_text(json.dumps(SHAPE))
    arguments = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, max_num_seqs=12, max_model_len=128,
        max_num_batched_tokens=64, block_size=BLOCK, enforce_eager=True, **more,
    )  # fmt: skip
    return arguments.create_engine_config()


def make_scheduler(vllm_config: Any, num_blocks: int, second_runner: bool) -> Any:
    """vLLM's scheduler: for the second model runner the one that schedules ahead."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    vllm_config.cache_config.num_gpu_blocks = num_blocks
    groups = [KVCacheGroupSpec(["layer"], spec)]
    scheduler = (AsyncScheduler if second_runner else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    scheduler.use_v2_model_runner = second_runner
    return scheduler


def make_vllm_request(
    name: str, tokens: list[int], params: Any, salt: str | None = None, adapter: Any = None
) -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(
        name, tokens, params, None, cache_salt=salt, block_hasher=hasher, lora_request=adapter
    )


def drawn_at(seed: int, position: int) -> tuple[int, float]:
    """The token at this position of such a response, and its log-probability."""
    draw = random.Random(f"{seed}/{position}")
    return draw.randrange(60), float(np.float32(-draw.random()))


class FakeRunner:
    """Keeps what vLLM's model runner keeps of requests, and fails where that would."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._second = scheduler.use_v2_model_runner
        self._slots: dict[str, int] = {}  # tokens of a request when it got its slot
        self._num_computed: dict[str, int] = {}

    def compute(self, output: Any) -> Any:
        """The model's answer to a schedule."""
        from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput

        self._take(output)
        names = sorted(output.num_scheduled_tokens, reverse=True)  # of any order
        tokens: list[list[int]] = []
        values = np.zeros((len(names), 1), np.float32)
        prompts: dict[str, Any] = {}
        for row, name in enumerate(names):
            request = self._scheduler.requests[name]
            end = self._num_computed[name] + output.num_scheduled_tokens[name]
            is_drawn = end >= (self._slots[name] if self._second else request.num_tokens)
            token, values[row, 0] = drawn_at(request.sampling_params.seed, end)
            tokens.append([token] if is_drawn else [])
            if is_drawn and request.sampling_params.prompt_logprobs is not None:
                length = request.num_prompt_tokens - 1
                prompts[name] = LogprobsTensors.empty_cpu(length, 1)
        ids = np.array([[*new, 0][:1] for new in tokens], np.int32).reshape(-1, 1)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=LogprobsLists(ids, values, np.zeros(len(names), np.int32)),
            prompt_logprobs_dict=prompts,
        )

    def _take(self, output: Any) -> None:
        """Give and take slots as the runner does. The second one keeps a slot for each request that
        runs, scheduled or not; the first one takes any request by its name."""
        preempted = output.preempted_req_ids if self._second else ()
        for name in {*output.finished_req_ids, *(preempted or ())}:
            self._slots.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._slots[new.req_id] = self._scheduler.requests[new.req_id].num_tokens
            self._num_computed[new.req_id] = new.num_computed_tokens
        most = self._scheduler.max_num_running_reqs
        assert not self._second or len(self._slots) <= most, "No free indices"
        cached = output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            assert name in self._slots, "a request that goes on has its slot"
            self._num_computed[name] = computed


class FakeEngine:
    """vLLM's LLMEngine with the second model runner, which computes one batch ahead."""

    def __init__(self, vllm_config: Any, num_blocks: int) -> None:
        self.scheduler = make_scheduler(vllm_config, num_blocks, second_runner=True)
        self.batch_queue: deque[tuple[Any, Any]] = deque()
        core = SimpleNamespace(scheduler=self.scheduler, batch_queue=self.batch_queue)
        self.engine_core = SimpleNamespace(engine_core=core, shutdown=lambda: None)
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self._runner = FakeRunner(self.scheduler)
        self._names: dict[str, str] = {}  # by internal id
        self.loads = 0

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[Any]:
        if method == "load_version":
            self.loads += 1
            return [{"w": self.loads}]
        return [False]  # whose noise is the response's already

    def add_request(self, name: str, prompt: Any, params: Any, lora_request: Any) -> str:
        internal = f"{name}-{len(self._names)}"
        self._names[internal] = name
        tokens = [*prompt["prompt_token_ids"]]
        salt = prompt.get("cache_salt")
        request = make_vllm_request(internal, tokens, params, salt, lora_request)
        self.scheduler.add_request(request)
        return internal

    def abort_request(self, names: list[str], internal: bool) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        done: bool = self.scheduler.reset_prefix_cache(reset_running_requests)
        return done

    def step(self) -> list[Any]:
        """As `EngineCore.step_with_batch_queue` does with two batches."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.batch_queue.appendleft((output, self._runner.compute(output)))
            is_more = output.total_num_scheduled_tokens > 0 or self.scheduler.has_requests()
            if len(self.batch_queue) < 2 and is_more:
                return []
        elif not self.batch_queue:
            return []
        outputs = self.scheduler.update_from_output(*self.batch_queue.pop())
        return [self._told(each) for each in (outputs.get(0) or SimpleNamespace(outputs=())).outputs
                if each.finish_reason is not None]  # fmt: skip

    def _told(self, output: Any) -> Any:
        tensors = output.new_prompt_logprobs_tensors
        found = None if tensors is None else SimpleNamespace(logprobs=[0.0] * len(tensors.logprobs))
        return SimpleNamespace(
            request_id=self._names[output.request_id],
            finished=True,
            outputs=[SimpleNamespace(finish_reason=str(output.finish_reason))],
            prompt_logprobs=found,
        )
