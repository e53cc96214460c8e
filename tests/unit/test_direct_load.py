"""Weight versions into a model of toy layers that fuse, shard, repack and tie as vLLM's do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from artifacts.weights import fingerprints, write_weights
from tasks.engines.vllm.worker import WeightReader, addresses, check_in_place

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

    vllm_config = None

    def __init__(self, model: Toy, order: tuple[str, ...] = tuple(ROWS)) -> None:
        self.num_reloads = 0
        self._order = order
        self.model_runner = SimpleNamespace(
            get_model=lambda: model, reload_weights=self._reload, model=model
        )

    def _reload(self, weights_iterator: list[tuple[str, Tensor]]) -> None:
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


def write_version(folder: Path, version: int, **changed: tuple[int, ...]) -> str:
    shapes = SHAPES | {name.replace("__", "."): shape for name, shape in changed.items()}
    generator = torch.Generator().manual_seed(version)
    tensors = [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]
    return write_weights(tensors, folder / f"{version}.safetensors", version).path


def held(model: Toy) -> list[Tensor]:
    """All that the toy computes with."""
    products = [module.cpu_linear(torch.eye(8).bfloat16(), None, None) for module in packed(model)]
    return [model.embed_tokens.weight.clone(), model.norm.weight.clone(), *products]


def packed(model: Toy) -> list[Any]:
    return [model.attn.qkv, model.lm_head]


@pytest.mark.parametrize(("tp_rank", "tp_size"), [(0, 1), (1, 2)])
def test_later_versions_are_loaded_without_vllm_and_to_the_same_bits(
    tmp_path: Path, tp_rank: int, tp_size: int
) -> None:
    reader, plain = (Reader(Toy(tp_rank, tp_size)) for _ in range(2))
    emptied = reader.model_runner.model.attn.qkv.weight
    for version in (1, 2, 3):
        path = write_version(tmp_path, version)
        assert reader.load_version(path, version) == fingerprints(path)
        plain._reload(list(load_file(path).items()))
        for ours, theirs in zip(
            held(reader.model_runner.model), held(plain.model_runner.model), strict=True
        ):
            assert torch.equal(ours, theirs)
        if version == 1:
            emptied = reader.model_runner.model.attn.qkv.weight
    assert reader.num_reloads == 1
    assert reader.model_runner.model.attn.qkv.weight is emptied


def test_a_model_whose_parts_lie_otherwise_is_always_loaded_by_vllm(tmp_path: Path) -> None:
    """Its own reload puts v before k, which reads back as other weights than the file's."""
    reader = Reader(Toy(), order=("q_proj", "v_proj", "k_proj"))
    for version in (1, 2):
        path = write_version(tmp_path, version)
        found, right = reader.load_version(path, version), fingerprints(path)
        assert {name for name in right if found[name] != right[name]} == {
            "attn.k_proj.weight",
            "attn.v_proj.weight",
        }
    assert reader.num_reloads == 2


class MLAAttention(nn.Module):
    """Derives its own matrices from the weights of other layers."""

    def process_weights_after_loading(self, dtype: torch.dtype) -> None: ...


def test_a_model_with_a_layer_that_derives_weights_is_always_loaded_by_vllm(
    tmp_path: Path,
) -> None:
    model = Toy()
    model.attn.mla = MLAAttention()
    reader = Reader(model)
    for version in (1, 2):
        reader.load_version(write_version(tmp_path, version), version)
    assert reader.num_reloads == 2


def test_a_model_with_quantised_layers_is_always_loaded_by_vllm(tmp_path: Path) -> None:
    class Fp8LinearMethod(UnquantizedLinearMethod):
        pass

    model = Toy()
    model.attn.qkv.quant_method = Fp8LinearMethod()
    reader = Reader(model)
    for version in (1, 2):
        reader.load_version(write_version(tmp_path, version), version)
    assert reader.num_reloads == 2


def test_tensors_of_other_shapes_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    reader = Reader(Toy())
    reader.load_version(write_version(tmp_path, 1), 1)
    before = held(reader.model_runner.model)
    other = write_version(tmp_path, 2, attn__k_proj__weight=(3, 8))
    with pytest.raises(ValueError, match=r"attn\.k_proj\.weight is \(3, 8\) in .* and \(2, 8\)"):
        reader.load_version(other, 2)
    for now, then in zip(held(reader.model_runner.model), before, strict=True):
        assert torch.equal(now, then)


def test_a_product_that_does_not_take_the_new_weights_is_seen(tmp_path: Path) -> None:
    """The packing of a direct load is read back like that of vLLM's."""
    reader = Reader(Toy())
    reader.load_version(write_version(tmp_path, 1), 1)
    layer = reader.model_runner.model.attn.qkv
    stale = layer.cpu_linear

    class Stuck(UnquantizedLinearMethod):
        def process_weights_after_loading(self, layer: Any) -> None:  # Any: a toy layer
            layer.cpu_linear = stale

    layer.quant_method = Stuck()
    path = write_version(tmp_path, 2)
    found, right = reader.load_version(path, 2), fingerprints(path)
    assert {name for name in right if found[name] != right[name]} == {
        f"attn.{name}.weight" for name in ROWS
    }


def test_later_versions_lie_where_the_earlier_ones_lay(tmp_path: Path) -> None:
    """CUDA graphs read the memory that they were captured with."""
    reader = Reader(Toy())
    model = reader.model_runner.model
    reader.load_version(write_version(tmp_path, 1), 1)
    before = addresses(model)
    reader.load_version(write_version(tmp_path, 2), 2)
    assert addresses(model) == before
    model.norm.weight = nn.Parameter(model.norm.weight.clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match=r"in place, .*; norm\.weight and 0 others have moved"):
        check_in_place(before, addresses(model))
