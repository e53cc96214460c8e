"""A model of toy layers that fuse, shard, repack and tie as vLLM's do, and a worker that has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tasks.engines.vllm.worker import WeightReader

ROWS = {"q_proj": 6, "k_proj": 2, "v_proj": 2}
SHAPES = {
    "embed_tokens.weight": (12, 8),
    "norm.weight": (8,),
    **{f"attn.{name}.weight": (rows, 8) for name, rows in ROWS.items()},
}


class UnquantizedLinearMethod:
    """Packs a weight into a product and drops it, or keeps it beside."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def process_weights_after_loading(self, layer: Any) -> None:  # Any: a toy of a vLLM layer
        packed = layer.weight.detach().clone()
        layer.cpu_linear = lambda x, weight, bias: x @ packed.T
        if not self._is_kept:
            layer.weight = nn.Parameter(packed[:0, 0].clone(), requires_grad=False)


class QKVParallelLinear(nn.Module):
    def __init__(self, tp_rank: int, tp_size: int) -> None:
        super().__init__()
        self.tp_rank, self.tp_size = tp_rank, tp_size
        self.output_partition_sizes = [rows // tp_size for rows in ROWS.values()]
        self.weight = nn.Parameter(torch.zeros(sum(ROWS.values()) // tp_size, 8).bfloat16())
        self.quant_method = UnquantizedLinearMethod()
        self.quant_method.process_weights_after_loading(self)


class ParallelLMHead(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.tp_rank, self.tp_size = 0, 1
        self.weight = weight
        self.quant_method = UnquantizedLinearMethod(is_kept=True)
        self.quant_method.process_weights_after_loading(self)


class Toy(nn.Module):
    """An embedding with a tied head, a norm, and fused projections."""

    packed_modules_mapping: ClassVar = {"qkv": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self, tp_rank: int = 0, tp_size: int = 1) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(12, 8, dtype=torch.bfloat16)
        self.norm = nn.RMSNorm(8, dtype=torch.bfloat16)
        self.attn = nn.Module()
        self.attn.qkv = QKVParallelLinear(tp_rank, tp_size)
        self.lm_head = ParallelLMHead(self.embed_tokens.weight)
        self.requires_grad_(False)


class Reader(WeightReader):
    """The extension, beside a runner whose own reload loads the toy in `order`."""

    def __init__(self, model: Toy, order: tuple[str, ...] = tuple(ROWS)) -> None:
        self.rank = self.num_reloads = 0
        self._order = order
        self.model_runner = SimpleNamespace(get_model=lambda: model, model=model)

    def reload_weights(self, weights_iterator: list[tuple[str, Tensor]]) -> None:
        self.num_reloads += 1
        model, tensors = self.model_runner.model, dict(weights_iterator)
        qkv = model.attn.qkv
        model.embed_tokens.weight.copy_(tensors["embed_tokens.weight"])
        model.norm.weight.copy_(tensors["norm.weight"])
        shards = [
            tensors[f"attn.{name}.weight"].chunk(qkv.tp_size)[qkv.tp_rank] for name in self._order
        ]
        qkv.weight = nn.Parameter(torch.cat(shards), requires_grad=False)
        for module in (qkv, model.lm_head):
            module.quant_method.process_weights_after_loading(module)
