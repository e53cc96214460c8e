"""Where a judge's weights lie on a GPU that it shares, and what vLLM is told about it. Pure.

    resident    all layers stay on the device                nothing to wait for
    sleep       weights leave the device between rounds      it takes turns, nothing overlaps
    prefetch    some layers of every group are streamed in   hidden, given tokens enough a pass

The third is the layer-wise pipeline of the RollPacker paper (4.3), built of vLLM's own prefetch
offload. A layer of w parameters in bf16 is 2w bytes to copy and 2w FLOP per token to compute, so
that a copy is hidden from `compute / link` tokens per forward pass on, whatever the model's size.
On a CPU device only `resident` means anything.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Placement = Literal["resident", "sleep", "prefetch"]
GROUP_LAYERS = 8  # vLLM offloads the last layers of every group of as many


class LayerStreaming(BaseModel):
    """What decides how many layers of a judge stay on the device (placement prefetch)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


def break_even_tokens(streaming: LayerStreaming) -> float:
    """Tokens per forward pass from which on the copy of a bf16 layer takes no longer than its
    computation."""
    return streaming.compute_tflops * 1e12 / (streaming.link_gb_per_s * 1e9)


def resident_layers(num_layers: int, tokens_per_forward: int, streaming: LayerStreaming) -> int:
    """Layers that must stay on the device for the others' copies to be hidden: all for short
    inputs, none from the break-even on."""
    hidden = min(1.0, tokens_per_forward / break_even_tokens(streaming))
    return num_layers - math.floor(num_layers * hidden)


def streamed_in_group(
    num_layers: int, tokens_per_forward: int, streaming: LayerStreaming
) -> tuple[int, int]:
    """(layers of a group, streamed ones among them) in vLLM's terms; no more are streamed than the
    resident layers allow for."""
    group = min(GROUP_LAYERS, num_layers)
    share = 1 - resident_layers(num_layers, tokens_per_forward, streaming) / num_layers
    return group, math.floor(group * share)


def placement_arguments(
    placement: Placement, num_layers: int, tokens_per_forward: int, streaming: LayerStreaming
) -> dict[str, Any]:  # Any: vLLM's EngineArgs are of many types
    """Keyword arguments of vLLM's EngineArgs for a judge on a GPU."""
    if placement == "sleep":
        return {"enable_sleep_mode": True}
    if placement == "resident":
        return {}
    group, streamed = streamed_in_group(num_layers, tokens_per_forward, streaming)
    if streamed == 0:  # every copy would be waited for
        return {}
    return {
        "offload_backend": "prefetch",
        "offload_group_size": group,
        "offload_num_in_group": streamed,
        "offload_prefetch_step": streaming.prefetch_layers,
    }
