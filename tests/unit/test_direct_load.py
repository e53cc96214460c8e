"""Weight versions into a model of toy layers that fuse, shard, repack and tie as vLLM's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from toy_engine import ROWS, SHAPES, Reader, Toy, UnquantizedLinearMethod

from artifacts.records import WeightsRef
from artifacts.weights import fingerprints, write_weights
from tasks.engines.vllm.worker import addresses, check_in_place


def write_version(folder: Path, version: int, **changed: tuple[int, ...]) -> WeightsRef:
    shapes = SHAPES | {name.replace("__", "."): shape for name, shape in changed.items()}
    generator = torch.Generator().manual_seed(version)
    tensors = [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]
    return write_weights(tensors, folder / f"{version}.safetensors", version)


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
        weights = write_version(tmp_path, version)
        assert reader.load_version(weights, "engine") == fingerprints(weights.path)
        plain.reload_weights(list(load_file(weights.path).items()))
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
        weights = write_version(tmp_path, version)
        found, right = reader.load_version(weights, "engine"), fingerprints(weights.path)
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
        reader.load_version(write_version(tmp_path, version), "engine")
    assert reader.num_reloads == 2


def test_a_model_with_quantised_layers_is_always_loaded_by_vllm(tmp_path: Path) -> None:
    class Fp8LinearMethod(UnquantizedLinearMethod):
        pass

    model = Toy()
    model.attn.qkv.quant_method = Fp8LinearMethod()
    reader = Reader(model)
    for version in (1, 2):
        reader.load_version(write_version(tmp_path, version), "engine")
    assert reader.num_reloads == 2


def test_tensors_of_other_shapes_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    reader = Reader(Toy())
    reader.load_version(write_version(tmp_path, 1), "engine")
    before = held(reader.model_runner.model)
    other = write_version(tmp_path, 2, attn__k_proj__weight=(3, 8))
    with pytest.raises(ValueError, match=r"attn\.k_proj\.weight is \(3, 8\) in .* and \(2, 8\)"):
        reader.load_version(other, "engine")
    for now, then in zip(held(reader.model_runner.model), before, strict=True):
        assert torch.equal(now, then)


def test_a_product_that_does_not_take_the_new_weights_is_seen(tmp_path: Path) -> None:
    """The packing of a direct load is read back like that of vLLM's."""
    reader = Reader(Toy())
    reader.load_version(write_version(tmp_path, 1), "engine")
    layer = reader.model_runner.model.attn.qkv
    stale = layer.cpu_linear

    class Stuck(UnquantizedLinearMethod):
        def process_weights_after_loading(self, layer: Any) -> None:  # Any: a toy layer
            layer.cpu_linear = stale

    layer.quant_method = Stuck()
    weights = write_version(tmp_path, 2)
    found, right = reader.load_version(weights, "engine"), fingerprints(weights.path)
    assert {name for name in right if found[name] != right[name]} == {
        f"attn.{name}.weight" for name in ROWS
    }


def test_later_versions_lie_where_the_earlier_ones_lay(tmp_path: Path) -> None:
    """CUDA graphs read the memory that they were captured with."""
    reader = Reader(Toy())
    model = reader.model_runner.model
    reader.load_version(write_version(tmp_path, 1), "engine")
    before = addresses(model)
    reader.load_version(write_version(tmp_path, 2), "engine")
    assert addresses(model) == before
    model.norm.weight = nn.Parameter(model.norm.weight.clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match=r"in place, .*; norm\.weight and 0 others have moved"):
        check_in_place(before, addresses(model))
