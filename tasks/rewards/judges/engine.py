"""A judge: one vLLM engine with a model of its own that says of answers whether they are right.

    event loop: decide / rest ──▶ SteppingThread ──▶ JudgeCore ──▶ vLLM's LLMEngine

Shares the rollout engine's vLLM settings, pinning and stepping thread, and nothing else: it holds
other weights, which never change in a run. Leaves out who asks, and in what batches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.models.registry import ModelConfig
from tasks.engines.model_files import check_model_directory, read_tokenizer
from tasks.engines.vllm.cores import pin_this_thread
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.engines.vllm.llm_engine import build_llm_engine, on_cpu
from tasks.engines.vllm.stepping import SteppingThread
from tasks.rewards.judges.core import JudgeCore
from tasks.rewards.judges.placement import LayerStreaming, Placement, placement_arguments


class Judge(Protocol):
    """Says of answers whether they are right."""

    name: str

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        """A judgement for each question, in order. TimeoutError when it takes too long; ActorLost
        or EngineLost when the judge is gone."""
        ...

    async def rest(self) -> None:
        """No question follows for a while: give the device back, where the placement says so."""
        ...


class JudgeEngineConfig(BaseModel):
    """The model that judges and how it runs; one judge per device of the role `judge`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelConfig = Field(
        ..., description="The model that judges; its weights are never those that are trained."
    )
    placement: Placement = Field(
        "resident",
        description=(
            "On a GPU that it shares: keep all weights there, let them sleep between rounds, or"
            " stream layers."
        ),
    )
    streaming: LayerStreaming = Field(
        default_factory=LayerStreaming,
        description="How many layers stay on the GPU (placement prefetch).",
    )
    dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Number format of weights and activations."
    )
    max_num_seqs: int = Field(
        64, ge=1, description="Largest number of questions that are judged together."
    )
    max_model_len: int = Field(
        2048,
        ge=64,
        description="Bound on the tokens of a question; longer answers keep head and tail.",
    )
    max_batched_tokens: int = Field(
        4096,
        ge=32,
        description="Tokens of one forward pass; placement prefetch wants 16384 on PCIe 4.",
    )
    kv_cache_gb: float = Field(
        0.5, gt=0, description="Size of the KV cache on a CPU device, in GiB."
    )
    gpu_memory_utilization: float = Field(
        0.3, gt=0, le=1, description="Share of a GPU's memory that the judge may take."
    )
    call_deadline_s: float = Field(
        300.0,
        gt=0,
        description="Longest time for a batch, after which the judge counts as lost, seconds.",
    )

    def vllm_arguments(
        self, model_path: str, seed: int, on_cpu: bool, has_tokenizer: bool
    ) -> dict[str, Any]:  # Any: vLLM's many types
        """The keyword arguments of vLLM's EngineArgs. ValueError for a placement that this device
        does not have."""
        self.check_device("cpu" if on_cpu else "cuda")
        engine = VllmEngineConfig(
            dtype=self.dtype,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            max_batched_tokens=self.max_batched_tokens,
            kv_cache_gb=self.kv_cache_gb,
            gpu_memory_utilization=self.gpu_memory_utilization,
        )
        arguments = engine.vllm_arguments(model_path, seed, on_cpu) | {
            "skip_tokenizer_init": not has_tokenizer
        }
        del arguments["worker_extension_cls"]  # it loads weights, which a judge never does
        if on_cpu:
            return arguments
        return arguments | placement_arguments(
            self.placement, read_num_layers(model_path), self.max_batched_tokens, self.streaming
        )

    def check_device(self, device_kind: str) -> None:
        """ValueError when the placement needs a GPU and there is none."""
        if device_kind == "cpu" and self.placement != "resident":
            raise ValueError(
                f"a judge on a CPU device must have placement 'resident', got {self.placement!r}:"
                " there is no device memory to give back; set placement=resident, or"
                " cluster.device_kind=cuda"
            )


class JudgeEngine(Judge):
    """One judge in this process. `start` builds it, `close` frees it."""

    def __init__(
        self,
        config: JudgeEngineConfig,
        model_path: str,
        name: str,
        cpu_ids: Sequence[int] | None,
        *,
        has_tokenizer: bool,
    ) -> None:
        """has_tokenizer: whether vLLM itself needs the tokenizer, which structured output does."""
        check_model_directory(model_path)
        self.name = name
        self._config = config
        self._model_path = model_path
        self._cpu_ids = tuple(cpu_ids) if cpu_ids else None
        self._has_tokenizer = has_tokenizer
        self._thread: SteppingThread[JudgeCore] = SteppingThread(name, self._build)

    def start(self, deadline_s: float) -> None:
        """Build the engine in its thread and wait for it."""
        self._thread.start(deadline_s)

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        batch = tuple(questions)
        return await self._thread.call(
            "decide", lambda core: core.decide(batch), self._config.call_deadline_s
        )

    async def rest(self) -> None:
        if self._config.placement == "sleep":
            await self._thread.call("rest", lambda core: core.rest(), self._config.call_deadline_s)

    def check_alive(self) -> None:
        """Raise EngineLost when the stepping thread has died; a batch that runs is not waited
        for."""
        self._thread.check_alive()

    def close(self) -> None:
        """Free the device."""
        self._thread.close(self._config.call_deadline_s)

    def _build(self) -> JudgeCore:
        pin_this_thread(self._cpu_ids, 1)
        arguments = self._config.vllm_arguments(self._model_path, 0, on_cpu(), self._has_tokenizer)
        engine = build_llm_engine(arguments)
        return JudgeCore(engine, read_tokenizer(self._model_path), self._config.max_model_len)


def read_num_layers(model_path: str) -> int:
    """Decoder layers of the model."""
    # Any: JSON values
    config: dict[str, Any] = json.loads((Path(model_path) / "config.json").read_text())
    return int(config.get("text_config", config)["num_hidden_layers"])
