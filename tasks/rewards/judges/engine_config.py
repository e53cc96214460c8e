"""Settings of the model that judges, the vLLM arguments that follow, and the interface `Judge`.

A judge that shares a GPU has one of three placements:

    resident    all layers stay on the device                no waiting
    sleep       weights leave the device between rounds      the roles take turns, without overlap
    prefetch    some layers of every group are streamed in   hidden if a pass has enough tokens

`prefetch` is the layer-wise pipeline of the RollPacker paper (4.3), by vLLM's prefetch offload. A
layer of w parameters in bf16 has 2w bytes to copy and takes 2w FLOP per token, so the computation
hides the copy from `compute / link` tokens on. A CPU device allows `resident` only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds, Fixed
from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.models.registry import ModelConfig
from tasks.engines.vllm.engine import VllmEngineConfig

Placement = Literal["resident", "sleep", "prefetch"]
GROUP_LAYERS = 8  # vLLM offloads the last layers of every group of as many


class LayerStreaming(FrozenConfig):
    """Settings that decide how many layers of a judge stay on the device (placement prefetch)."""

    link_gb_per_s: float = Field(
        25.0,
        gt=0,
        description=(
            "Bandwidth from host memory to the GPU, GB/s: about 25 for PCIe 4 x16, 50 for 5."
        ),
    )
    compute_tflops: float = Field(
        400.0, gt=0, description="What the GPU reaches in a judge's prefill, TFLOP/s."
    )
    prefetch_layers: int = Field(
        1,
        ge=1,
        description=(
            "Layers copied ahead of the one that computes; each takes memory for one layer."
        ),
    )


class JudgeEngineConfig(FrozenConfig):
    """The model that judges and its engine; each device of the role `judge` has one."""

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
    # how many layers stay on the GPU (placement prefetch)
    streaming: Fixed[LayerStreaming] = LayerStreaming()
    # number format of weights and activations
    dtype: Fixed[Literal["bfloat16", "float32"]] = "bfloat16"
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
    call_deadline_s: DerivedSeconds = 300.0  # for a batch, then the judge counts as lost

    def vllm_arguments(
        self, model_path: str, seed: int, on_cpu: bool, has_tokenizer: bool
    ) -> dict[str, Any]:  # Any: vLLM's many types
        """Keyword arguments of vLLM's EngineArgs. Raises ValueError for a placement that this kind
        of device does not allow."""
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
        # Any: JSON values
        model: dict[str, Any] = json.loads((Path(model_path) / "config.json").read_text())
        num_layers = int(model.get("text_config", model)["num_hidden_layers"])
        return arguments | placement_arguments(
            self.placement, num_layers, self.max_batched_tokens, self.streaming
        )

    def check_device(self, device_kind: str) -> None:
        """Raise ValueError if the placement needs a GPU, and the device is none."""
        if device_kind == "cpu" and self.placement != "resident":
            raise ValueError(
                f"a judge on a CPU device must have placement 'resident', got {self.placement!r}:"
                " there is no device memory to give back; set placement=resident, or"
                " cluster.device_kind=cuda"
            )


class Judge(Protocol):
    """Judges answers in batches."""

    name: str

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        """Answer each question, in order. Raises TimeoutError after the judge's deadline, ActorLost
        or EngineLost if the judge is gone."""
        ...

    async def sleep(self) -> None:
        """Release the device's memory until the next question, if the placement is `sleep`."""
        ...


def break_even_tokens(streaming: LayerStreaming) -> float:
    """Fewest tokens per forward pass for which computing a bf16 layer takes as long as copying
    it."""
    return streaming.compute_tflops * 1e12 / (streaming.link_gb_per_s * 1e9)


def resident_layers(num_layers: int, tokens_per_forward: int, streaming: LayerStreaming) -> int:
    """Number of layers that must stay on the device so that the copies of all others are hidden.
    Decreases from num_layers at 0 tokens to 0 at the break-even."""
    hidden = min(1.0, tokens_per_forward / break_even_tokens(streaming))
    return num_layers - math.floor(num_layers * hidden)


def placement_arguments(
    placement: Placement, num_layers: int, tokens_per_forward: int, streaming: LayerStreaming
) -> dict[str, Any]:  # Any: vLLM's EngineArgs are of many types
    """Keyword arguments of vLLM's EngineArgs for a judge on a GPU. Of each of vLLM's groups of
    layers at most the share that `resident_layers` allows is streamed."""
    if placement == "sleep":
        return {"enable_sleep_mode": True}
    if placement == "resident":
        return {}
    group = min(GROUP_LAYERS, num_layers)
    share = 1 - resident_layers(num_layers, tokens_per_forward, streaming) / num_layers
    streamed = math.floor(group * share)
    if streamed == 0:  # no copy could be hidden
        return {}
    return {
        "offload_backend": "prefetch",
        "offload_group_size": group,
        "offload_num_in_group": streamed,
        "offload_prefetch_step": streaming.prefetch_layers,
    }
