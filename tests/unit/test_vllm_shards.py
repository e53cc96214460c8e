"""What a tensor-parallel rank holds, on stand-ins with names and attributes of vLLM's layers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from artifacts.weights import fingerprint
from tasks.engines.vllm.llm_engine import agreed
from tasks.engines.vllm.model_parts import checkpoint_names
from tasks.engines.vllm.worker import _fingerprints_held

HIDDEN, HEAD, HEADS, KV_HEADS, INNER, VOCABULARY = 16, 4, 8, 2, 24, 37
VERSION = 3


class Layer(nn.Module):
    """A layer of one rank; repacked, its matrix is only there as a product."""

    def __init__(self, rank: int, size: int, weight: Tensor, **attributes: object) -> None:
        super().__init__()
        self.tp_rank, self.tp_size = rank, size
        for name, value in attributes.items():
            setattr(self, name, value)
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)

    def repack(self) -> None:
        matrix = self.weight.data.clone()
        self.weight = nn.Parameter(torch.zeros(3, dtype=matrix.dtype), requires_grad=False)
        self.cpu_linear = lambda x, weight, bias: x @ matrix.T
        self.matrix = matrix


class QKVParallelLinear(Layer):
    pass


class MergedColumnParallelLinear(Layer):
    pass


class RowParallelLinear(Layer):
    pass


class VocabParallelEmbedding(Layer):
    pass


class UnknownLinear(Layer):
    pass


class RMSNorm(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)


def the_file() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "q_proj.weight": (HEADS * HEAD, HIDDEN),
        "k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "gate_proj.weight": (INNER, HIDDEN),
        "up_proj.weight": (INNER, HIDDEN),
        "down_proj.weight": (HIDDEN, INNER),
        "mixer.weight": (INNER, HIDDEN),
        "norm.weight": (HIDDEN,),
    }
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def cut(tensor: Tensor, rank: int, shards: int, size: int, dim: int = 0) -> Tensor:
    """The shard that vLLM's weight loaders give to a rank."""
    return tensor.chunk(shards, dim)[rank // (size // shards)]


def rank_model(rank: int, size: int) -> nn.Module:
    """A rank's part of the model, as vLLM shards it."""
    file, kv_shards = the_file(), min(size, KV_HEADS)
    kv_rows = KV_HEADS * HEAD // kv_shards
    padded = 40 // size
    start, end = min(VOCABULARY, rank * padded), min(VOCABULARY, (rank + 1) * padded)
    embedding = torch.zeros(padded, HIDDEN, dtype=torch.bfloat16)
    embedding[: end - start] = file["embed_tokens.weight"][start:end]
    qkv = [cut(file["q_proj.weight"], rank, size, size)]
    qkv += [cut(file[f"{name}_proj.weight"], rank, kv_shards, size) for name in "kv"]
    merged = [cut(file[f"{name}_proj.weight"], rank, size, size) for name in ("gate", "up")]
    model = nn.Module()
    model.packed_modules_mapping = {  # type: ignore[assignment]
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    model.embed_tokens = VocabParallelEmbedding(
        rank,
        size,
        embedding,
        shard_indices=SimpleNamespace(org_vocab_start_index=start, org_vocab_end_index=end),
    )
    model.qkv_proj = QKVParallelLinear(
        rank,
        size,
        torch.cat(qkv),
        output_partition_sizes=[HEADS * HEAD // size, kv_rows, kv_rows],
        input_size_per_partition=HIDDEN,
    )
    model.gate_up_proj = MergedColumnParallelLinear(
        rank,
        size,
        torch.cat(merged),
        output_partition_sizes=[INNER // size] * 2,
        input_size_per_partition=HIDDEN,
    )
    model.down_proj = RowParallelLinear(
        rank,
        size,
        cut(file["down_proj.weight"], rank, size, size, dim=1),
        output_partition_sizes=[HIDDEN],
        input_size_per_partition=INNER // size,
    )
    model.mixer = UnknownLinear(rank, size, cut(file["mixer.weight"], rank, size, size))
    model.norm = RMSNorm(file["norm.weight"])
    return model


def layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    return ((name, layer) for name, layer in model.named_children() if isinstance(layer, Layer))


def attested(models: list[nn.Module]) -> dict[str, int]:
    return agreed([_fingerprints_held(model, the_file(), VERSION) for model in models])


RIGHT = {name: fingerprint(tensor) for name, tensor in the_file().items()}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("repacked", [False, True])
def test_right_shards_have_the_fingerprints_of_the_file(size: int, repacked: bool) -> None:
    models = [rank_model(rank, size) for rank in range(size)]
    for model in models if repacked else ():
        for name, layer in layers(model):
            if name.endswith("proj"):
                layer.repack()
    assert attested(models) == RIGHT


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    ("layer", "row", "name"),
    [
        ("embed_tokens", 0, "embed_tokens.weight"),
        ("qkv_proj", 1, "q_proj.weight"),
        ("qkv_proj", -1, "v_proj.weight"),
        ("gate_up_proj", 0, "gate_proj.weight"),
        ("gate_up_proj", -1, "up_proj.weight"),
        ("down_proj", 5, "down_proj.weight"),
        ("norm", 5, "norm.weight"),
    ],
)
def test_a_wrong_element_of_any_shard_is_seen(size: int, layer: str, row: int, name: str) -> None:
    for rank in range(size):
        models = [rank_model(place, size) for place in range(size)]
        weight = models[rank].get_submodule(layer).weight
        assert isinstance(weight, Tensor)
        weight[row].view(-1)[0] += 1
        found = attested(models)
        assert {wrong for wrong in RIGHT if found[wrong] != RIGHT[wrong]} == {name}


def test_a_wrong_column_of_a_repacked_shard_is_seen() -> None:
    for layer, name in (("qkv_proj", "q_proj.weight"), ("down_proj", "down_proj.weight")):
        models = [rank_model(rank, 2) for rank in range(2)]
        for model in models:
            for _, each in layers(model):
                if hasattr(each, "output_partition_sizes"):
                    each.repack()
        spoilt = models[1].get_submodule(layer)
        assert isinstance(spoilt, Layer)
        spoilt.matrix[1, VERSION] += 1  # the first column that is read back of this version
        found = attested(models)
        assert {wrong for wrong in RIGHT if found[wrong] != RIGHT[wrong]} == {name}


def test_an_engine_of_another_dtype_holds_the_same() -> None:
    assert attested([rank_model(rank, 2).float() for rank in range(2)]) == RIGHT


def test_shards_of_an_unknown_layer_are_the_files() -> None:
    models = [rank_model(rank, 2) for rank in range(2)]
    weight = models[1].get_submodule("mixer").weight
    assert isinstance(weight, Tensor)
    weight += 1
    assert attested(models) == RIGHT


def test_layers_of_a_model_with_a_tower_have_the_names_of_its_checkpoint() -> None:
    model, language = nn.Module(), nn.Module()
    linear = nn.Linear(2, 2, bias=False)
    model.visual = nn.ModuleDict({"mlp": nn.ModuleDict({"gate_up_proj": linear})})
    language.model = nn.ModuleDict({"embed_tokens": nn.Embedding(3, 2)})
    language.lm_head = nn.Linear(2, 3, bias=False)
    model.language_model = language
    prefixes = {
        "model.language_model.": "language_model.model.",
        "model.visual.": "visual.",
        "lm_head.": "language_model.lm_head.",
        "model.": "language_model.model.",  # of older checkpoints
    }
    mapper = SimpleNamespace(orig_to_new_prefix=prefixes)
    packed = {"gate_up_proj": ["gate_proj", "up_proj"]}
    model.hf_to_vllm_mapper, model.packed_modules_mapping = mapper, packed
    assert checkpoint_names(model) == {
        "model.visual.mlp.gate_proj.weight",
        "model.visual.mlp.up_proj.weight",
        "model.language_model.embed_tokens.weight",
        "lm_head.weight",
    }
    language.lm_head.weight = language.model["embed_tokens"].weight
    assert "lm_head.weight" not in checkpoint_names(model)
