"""The product of adapters on CPUs gives what vLLM's own does, whichever tokens run with which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.engines.vllm.adapter_products import multiply_by_adapter

pytestmark = pytest.mark.engine

IDS = [7, 9]  # vLLM's ids of the adapters in its two slots
RANK, INPUTS, SIZES = 3, 10, (4, 6)  # of a fused layer with two parts
LARGE = 2000  # tokens that bf16 multiplies in bf16
BATCHES = [
    (7, 7, 7, 7, 7),
    (9, 7, 0, 9, 7),
    (0, 0, 0, 0, 0),
    (9, 9, 9, 9, 9),
    (9,) * LARGE,
    (7,) * LARGE + (9, 0),
]


def wrapper() -> Any:  # Any: vLLM's
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    return PunicaWrapperCPU(max_num_batched_tokens=LARGE + 2, max_batches=LARGE + 2, device="cpu")


def run_with(made: Any, ids: tuple[int, ...]) -> None:
    """Tell the wrapper the adapter of each token, 0 for the base; all are of one request each."""
    from vllm.lora.layers import LoRAMapping

    made.update_metadata(LoRAMapping(ids, ids, is_prefill=True), IDS, len(IDS) + 1, 100)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(made: Any, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    x, y = drawn(num_tokens, INPUTS, seed=1).to(dtype), drawn(num_tokens, sum(SIZES), seed=2)
    firsts = tuple(drawn(2, 1, RANK, INPUTS, seed=3 + part).to(dtype) for part in range(2))
    seconds = tuple(
        drawn(2, 1, size, RANK, seed=5 + part).to(dtype) for part, size in enumerate(SIZES)
    )
    y = y.to(dtype)
    made.add_lora_linear(y, x, firsts, seconds, 1.0, SIZES)
    return y.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_vllm(dtype: torch.dtype) -> None:
    """Of a wrapper that was told its tokens before, and of one that is told anew."""
    plain, ours = wrapper(), wrapper()
    run_with(ours, BATCHES[0])
    manager = SimpleNamespace(punica_wrapper_mapping={"model": ours})
    multiply_by_adapter(manager)
    multiply_by_adapter(manager)  # a later version
    tolerance = 1e-5 if dtype is torch.float32 else 0.1
    for number, ids in enumerate(BATCHES):
        run_with(plain, ids)
        if number:
            run_with(ours, ids)
        found, wanted = product(ours, len(ids), dtype), product(plain, len(ids), dtype)
        for token, adapter in enumerate(ids):
            if not adapter:  # vLLM's own takes the last slot for it
                wanted[token] = drawn(len(ids), sum(SIZES), seed=2).to(dtype)[token]
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0.03)


def test_adapters_of_other_slots_add_other_things() -> None:
    ours = wrapper()
    multiply_by_adapter(SimpleNamespace(punica_wrapper_mapping={"model": ours}))
    found = []
    for ids in ((7,) * 4, (9,) * 4, (0,) * 4):
        run_with(ours, ids)
        found.append(product(ours, 4, torch.float32))
    first, second, base = found
    assert not torch.allclose(first, second)
    assert torch.equal(base, drawn(4, sum(SIZES), seed=2))
