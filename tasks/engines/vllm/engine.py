"""The real engine: one vLLM replica in this process, behind the Engine protocol.

    event loop: submit / collect / abort / load_weights / stats
        ──▶ SteppingThread ──▶ VllmCore ──▶ vLLM's LLMEngine

The async methods hand calls to the stepping thread, which is pinned to the replica's cores, and
never block the loop. Text is decoded in `collect`: on a GPU, while the thread waits for a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import Field

from artifacts.fixed_fields import DerivedSeconds, Fixed
from artifacts.models.size import ModelSize
from artifacts.new_tokens import News
from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.base import DRAIN_S, Attestation, EngineStats, Replica, ReplicaConfig
from tasks.engines.model_files import (
    check_model_directory,
    read_stop_ids,
    read_tokenizer,
    takes_pictures,
)
from tasks.engines.vllm import picture_inputs
from tasks.engines.vllm.adapter_slot import arguments_of, slot_parameters
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.llm_engine import build_llm_engine, on_cpu, pin_this_thread
from tasks.engines.vllm.picture_inputs import PictureInputs
from tasks.engines.vllm.stepping import SteppingThread

T = TypeVar("T")
GRAPH_RESPONSES = 512  # vLLM captures CUDA graphs of batches up to this unless it is told otherwise
CPU_BLOCK_TOKENS = 32  # vLLM's attention on CPUs has blocks of a multiple of this
# widths of an attention head for which vLLM's CPU attention has kernels
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


class VllmEngineConfig(ReplicaConfig):
    """The settings of a vLLM replica."""

    kind: Literal["vllm"] = Field(default="vllm", description="The real engine.")
    dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Number format of weights and activations."
    )
    max_num_seqs: int = Field(
        default=64, ge=1, description="Largest number of responses that decode together."
    )
    max_batched_tokens: int = Field(
        default=4096,
        ge=32,
        description="Tokens that one step may process, which chunks long prompts.",
    )
    block_size: Fixed[int] = 32  # tokens of a KV block; prompts share whole blocks
    kv_cache_gb: float = Field(
        default=1.0, gt=0, description="Size of the KV cache on a CPU device, in GiB."
    )
    gpu_memory_utilization: float = Field(
        default=0.6, gt=0, le=1, description="Share of a GPU's memory this replica may take."
    )
    prefix_caching: bool = Field(
        default=True,
        description=(
            "Whether responses of one prompt share its KV cache: whole blocks, and on CPUs a copy"
            " of the started one."
        ),
    )
    enforce_eager: bool | Literal["auto"] = Field(
        default="auto",
        description=(
            "Run without compilation or CUDA graphs: starts faster, decodes slower on a GPU. auto:"
            " on CPUs alone."
        ),
    )
    sleep_mode: bool | Literal["auto"] = Field(
        default="auto",
        description=(
            "Whether a GPU replica gives its memory to the training between rollouts. auto: where"
            " it shares its GPU with the learner, whose predicted memory does not fit beside it."
        ),
    )
    start_deadline_s: DerivedSeconds = 600.0  # to build the engine
    call_deadline_s: DerivedSeconds = 120.0  # for the step that runs when a call comes
    load_deadline_s: DerivedSeconds = 300.0  # to load and attest a weight version

    @property
    def imports(self) -> tuple[str, ...]:
        return ("tasks.engines.vllm.imports",)

    @property
    def sleeps(self) -> bool:
        return self.sleep_mode is True

    @property
    def splits_heads(self) -> bool:
        return True

    @property
    def takes_offers(self) -> bool:
        return True

    @property
    def gpu_share(self) -> float:
        return self.gpu_memory_utilization

    def least_gpu_bytes(self, size: ModelSize) -> int:
        """The weights, the activations of a full step and its logits in fp32 (three times, while
        vLLM samples), the KV cache of one response, and the slots of adapters."""
        width = {"bfloat16": 2, "float32": 4}[self.dtype]
        per_token = width * (2 * size.hidden + 3 * size.inner // self.tensor_parallel_size)
        logits = 3 * 4 * self.max_num_seqs * size.vocabulary
        cache = 2 * width * size.num_layers * size.key_heads * size.head_width * self.max_model_len
        kept = width * size.num_parameters + cache
        slots = width * slot_parameters(self.adapter, size)
        held = kept // self.tensor_parallel_size + slots
        return held + self.max_batched_tokens * per_token + logits

    def check_model(self, model: Any, on_cpu: bool) -> None:  # Any: as in the base
        """Raises ValueError if the model has fewer positions than max_model_len; on CPUs for
        attention heads of a width, or experts beside an adapter, for which vLLM has no kernels; on
        GPUs for latent attention."""
        is_scaled = "factor" in str(getattr(model, "rope_parameters", None))  # vLLM says how far
        kept = [
            getattr(model, name, None) for name in ("max_position_embeddings", "model_max_length")
        ]
        longest = max((length for length in kept if length), default=self.max_model_len)
        if self.max_model_len > longest and not is_scaled:
            raise ValueError(
                f"engine.max_model_len must be <= the model's positions ({longest}), got"
                f" {self.max_model_len}; lower it, and sampling.max_response_tokens with it"
            )
        if not on_cpu and getattr(model, "kv_lora_rank", None):
            raise ValueError(
                "latent attention was tried on CPUs alone: vLLM's engines on GPUs keep products of"
                " its weights, of which is not known whether a load of new weights makes them anew;"
                " choose another model"
            )
        widths = (getattr(model, name, None) for name in ("qk_head_dim", "head_dim"))
        head_dim = next(filter(None, widths), model.hidden_size // model.num_attention_heads)
        if on_cpu and head_dim not in CPU_HEAD_DIMS:
            raise ValueError(
                "on CPUs a model's attention heads must have a width that vLLM has kernels for"
                f" ({', '.join(map(str, CPU_HEAD_DIMS))}), got {head_dim}; choose another model"
            )
        has_experts = any(getattr(model, f"num_{name}", 0) for name in ("experts", "local_experts"))
        if on_cpu and self.adapter is not None and has_experts:
            raise ValueError(
                "on CPUs a model with experts must be published whole, because vLLM has no kernels"
                " for experts beside an adapter there, got learner.lora.publish=adapter; set it to"
                " merged"
            )

    def route_obstacle(self, model: Any, on_cpu: bool) -> str:  # Any: as in the base
        windows = set(getattr(model, "layer_types", None) or ()) - {"full_attention"}
        if windows or getattr(model, "sliding_window", None):
            return "its layers have windows, whose KV cache does not keep every token"
        return "" if on_cpu else "routes are read from vLLM's first model runner, that of CPUs"

    def build_engine(
        self, model_path: str, name: str, core_ids: Sequence[int], seed: int
    ) -> VllmEngine:
        engine = VllmEngine(
            config=self, model_path=model_path, name=name, cpu_ids=core_ids, seed=seed
        )
        engine.start()
        return engine

    def explain_steps(self, on_cpu: bool) -> str:
        rest = ", asleep while the learner trains" if self.sleeps else ""
        return f"{'eager' if self.is_eager(on_cpu) else 'compiled, as CUDA graphs'}{rest}"

    def is_eager(self, on_cpu: bool) -> bool:
        """True if steps run without compilation and CUDA graphs on such a device."""
        return on_cpu if self.enforce_eager == "auto" else self.enforce_eager

    def vllm_arguments(
        self, model_path: str, seed: int, on_cpu: bool
    ) -> dict[str, Any]:  # Any: vLLM's EngineArgs are of many types
        """The keyword arguments of vLLM's EngineArgs. Raises ValueError for settings that this
        device does not support."""
        if on_cpu and self.block_size % CPU_BLOCK_TOKENS:
            raise ValueError(
                f"engine.block_size must be a multiple of {CPU_BLOCK_TOKENS} on CPUs, got"
                f" {self.block_size}; change it"
            )
        by_device: dict[str, Any] = {
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_sleep_mode": self.sleeps,
        }
        if on_cpu:
            by_device = {"kv_cache_memory_bytes": int(self.kv_cache_gb * 2**30)}
        is_eager = self.is_eager(on_cpu)
        if self.max_num_seqs > GRAPH_RESPONSES and not is_eager:
            by_device["compilation_config"] = {"max_cudagraph_capture_size": self.max_num_seqs}
        return by_device | {
            "model": model_path,
            "dtype": self.dtype,
            "seed": seed,
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_batched_tokens,
            "block_size": self.block_size,
            "enable_prefix_caching": self.prefix_caching,
            "enforce_eager": is_eager,
            "tensor_parallel_size": self.tensor_parallel_size,
            "distributed_executor_backend": "mp" if self.tensor_parallel_size > 1 else "uni",
            "worker_extension_cls": "tasks.engines.vllm.worker.WeightReader",
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            **arguments_of(self.adapter),
            **picture_inputs.arguments_of(model_path),
        }


class VllmEngine(Replica):
    """One vLLM replica. `start` builds it and `close` frees it; in between, one event loop calls
    the methods of the protocol."""

    def __init__(
        self,
        config: VllmEngineConfig,
        model_path: str,
        name: str,
        cpu_ids: Sequence[int] | None,
        seed: int,
    ) -> None:
        """cpu_ids: cores to pin to; None for any core that the process may use."""
        check_model_directory(model_path)
        self.name = name
        self._config = config

        def build() -> VllmCore:
            cores = tuple(cpu_ids) if cpu_ids else None
            pin_this_thread(cores, config.tensor_parallel_size)
            core = build_core(config, model_path, name, seed)
            self._decode = core.decode
            return core

        share = f"engine.gpu_memory_utilization={config.gpu_memory_utilization:g}"
        cure = (
            f"its share is {share}: resume the run with a smaller one, which leaves more beside it,"
            " or with a smaller engine.max_num_seqs or engine.max_batched_tokens"
        )
        self._thread: SteppingThread[VllmCore] = SteppingThread(name, build, cure)

    def start(self) -> None:
        """Build the engine in its thread; returns with the engine ready, on a GPU after minutes."""
        self._thread.start(self._config.start_deadline_s)

    async def submit(self, requests: Sequence[Request]) -> None:
        batch = tuple(requests)
        await self._call("submit", lambda core: core.add(batch))

    async def collect(self, wait_s: float) -> list[News]:
        news = await self._thread.collect(wait_s)
        return [self._with_text(each) if isinstance(each, Generated) else each for each in news]

    def _with_text(self, generated: Generated) -> Generated:
        return replace(generated, text=self._decode(generated.token_ids))

    async def abort(self, response_ids: Sequence[str]) -> None:
        """When this returns, `collect` can return the partial responses at once."""
        ids = tuple(response_ids)
        if not ids:
            self._thread.wake()
            return
        await self._call("abort", lambda core: self._thread.deliver(core.abort(ids)))

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        """Raises ValueError, with the weights unchanged, if the file's tensors are not the model's.
        The fingerprints are of the tensors that the engine holds, as far as `worker` can read them
        back."""
        fixed = tuple(probes)
        began_s = time.monotonic()
        drains = running is Running.DRAIN
        if drains:
            await self._call("load_weights", VllmCore.hold_new)

        def load(core: VllmCore) -> Attestation:
            drained_s = time.monotonic() - began_s if drains else 0.0
            if running is Running.DROP:
                self._thread.clear()
            if running is Running.KEEP:
                self._thread.deliver(core.settle())
            return replace(core.load(weights, fixed, running), drained_s=drained_s)

        deadline_s = self._config.load_deadline_s + (DRAIN_S if drains else 0.0)
        return await self._thread.call("load_weights", load, deadline_s, when_idle=drains)

    async def stats(self) -> EngineStats:
        return await self._call("stats", VllmCore.stats)

    async def sleep(self) -> None:
        """Release the GPU's memory until the next load or request, with sleep_mode."""
        if self._config.sleeps:
            await self._thread.call("sleep", VllmCore.sleep, self._config.load_deadline_s)

    def close(self) -> None:
        """Free the device. Pending and later calls raise EngineLost."""
        self._thread.close(self._config.call_deadline_s)

    async def _call(self, what: str, run: Callable[[VllmCore], T]) -> T:
        return await self._thread.call(what, run, self._config.call_deadline_s)


def build_core(
    config: VllmEngineConfig, model_path: str, name: str, seed: int, *, may_stop: bool = True
) -> VllmCore:
    """Build the engine in the calling thread, which must already be pinned. may_stop: whether end
    tokens end a response; a measurement wants responses of a given length."""
    tokenizer = read_tokenizer(model_path)
    if takes_pictures(model_path):
        picture_inputs.register_architecture(model_path)
    engine = build_llm_engine(config.vllm_arguments(model_path, seed, on_cpu=on_cpu()))
    stop_ids = read_stop_ids(model_path, tokenizer) if may_stop else ()
    core = VllmCore(
        engine,
        tokenizer,
        stop_ids,
        name,
        version=0,
        report_tokens=config.report_tokens,
        adapter=config.adapter,
        pictures=_pictures(config, model_path, engine),
        records_routes=config.records_routes,
    )
    core.warm_up()
    return core


def _pictures(
    config: VllmEngineConfig,
    model_path: str,
    engine: Any,  # Any: vLLM's
) -> PictureInputs | None:
    if not config.pictures:
        return None
    return PictureInputs(model_path, config.pictures, engine.model_config.dtype)
