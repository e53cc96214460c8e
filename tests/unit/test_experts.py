"""Experts in a model of toy layers that pack them as vLLM's CPU backend does: in place, and only
while a layer builds its kernel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from artifacts.records import WeightsRef
from artifacts.weights import fingerprints, write_weights
from tasks.engines.base import Attestation
from tasks.engines.vllm.llm_engine import agreed, disputed
from tasks.engines.vllm.model_parts import checkpoint_names
from tasks.engines.vllm.worker import WeightReader, loadable
from tasks.learner.weight_check import WeightCheckFailed, check_tensors

NUM, WIDTH, HIDDEN = 3, 4, 8
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
SHAPES = {
    "norm.weight": (HIDDEN,),
    GATE_UP: (NUM, 2 * WIDTH, HIDDEN),
    DOWN: (NUM, HIDDEN, WIDTH),
}


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, with the experts that came one by one in the tensors of a file."""

    def joined(part: str) -> Tensor:
        return torch.stack([tensors[f"mlp.experts.{n}.{part}.weight"] for n in range(NUM)])

    w13 = torch.cat([joined("w1"), joined("w3")], dim=1)
    fused_names = {"mlp.experts.gate_up_proj": w13, "mlp.experts.down_proj": joined("w2")}
    return {"norm.weight": tensors["norm.weight"], **fused_names}


class Kernel:
    """Reads weights whose elements stand in reverse."""

    def process_weights_after_loading(self, layer: Any) -> None:  # Any: a toy of a vLLM layer
        for name in ("w13_weight", "w2_weight"):
            held = getattr(layer, name)
            packed = held.flatten().flip(0).view(held.shape)
            setattr(layer, name, nn.Parameter(packed, requires_grad=False))


class Method:
    def __init__(self) -> None:
        self.moe_kernel: Any = None  # Any: a toy of vLLM's kernels

    def process_weights_after_loading(self, layer: Any) -> None:  # Any: a toy of a vLLM layer
        if self.moe_kernel is None:
            self.moe_kernel = SimpleNamespace(fused_experts=Kernel())
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)


class RoutedExperts(nn.Module):
    ckpt_gate_proj_name, ckpt_up_proj_name, ckpt_down_proj_name = "w1", "w3", "w2"

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__()
        self.global_num_experts, self.hidden_size = NUM, HIDDEN
        self.moe_config = SimpleNamespace(
            intermediate_size_per_partition=WIDTH // num_ranks,
            moe_parallel_config=SimpleNamespace(tp_size=num_ranks, tp_rank=rank),
        )
        self.quant_method = Method()
        self.load(torch.zeros(SHAPES["mlp.experts.gate_up_proj"]), torch.zeros(NUM, HIDDEN, WIDTH))

    def load(self, w13: Tensor, w2: Tensor) -> None:
        """As vLLM's reload does it: into new parameters, which are then processed."""
        width = self.moe_config.intermediate_size_per_partition
        start = self.moe_config.moe_parallel_config.tp_rank * width
        gate, up = (w13[:, first + start :][:, :width] for first in (0, WIDTH))
        self.w13_weight = nn.Parameter(torch.cat((gate, up), 1).bfloat16(), requires_grad=False)
        self.w2_weight = nn.Parameter(w2[..., start:][..., :width].bfloat16(), requires_grad=False)
        self.quant_method.process_weights_after_loading(self)

    def load_weights(self) -> None: ...

    def computes_with(self) -> list[Tensor]:
        """The weights as the kernel understands them."""
        return [held.flatten().flip(0).view(held.shape) for held in self.parameters()]


class Toy(nn.Module):
    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN, dtype=torch.bfloat16)
        self.mlp = nn.Module()
        self.mlp.experts = nn.Module()
        self.mlp.experts.routed_experts = RoutedExperts(rank, num_ranks)
        self.requires_grad_(False)


class Reader(WeightReader):
    """The extension, beside a runner that loads the toy; `spoil` is what a load goes wrong by."""

    def __init__(self, model: Toy, spoil: float = 0.0) -> None:
        self.rank = 0
        self.model_runner = SimpleNamespace(get_model=lambda: model, model=model)
        self._spoil = spoil

    def reload_weights(self, weights_iterator: list[tuple[str, Tensor]]) -> None:
        tensors = fused(dict(weights_iterator))
        self.model_runner.model.norm.weight.copy_(tensors["norm.weight"])
        w13, w2 = tensors[GATE_UP], tensors[DOWN].clone()
        w2[-1, -1, -1] += self._spoil
        self.experts.load(w13, w2)

    @property
    def experts(self) -> RoutedExperts:
        experts = self.model_runner.model.mlp.experts.routed_experts
        assert isinstance(experts, RoutedExperts)
        return experts


def write_version(folder: Path, version: int) -> tuple[WeightsRef, list[Tensor]]:
    """The file, and its experts."""
    generator = torch.Generator().manual_seed(version)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    weights = write_weights(tensors.items(), folder / f"{version}.safetensors", version)
    return weights, [tensor.bfloat16() for name, tensor in tensors.items() if "experts" in name]


def test_every_version_of_experts_is_packed_and_read_back_as_the_file(tmp_path: Path) -> None:
    reader = Reader(Toy())
    for version in (1, 2, 3):
        weights, written = write_version(tmp_path, version)
        assert reader.load_version(weights, "engine") == fingerprints(weights.path)
        for computed, wanted in zip(reader.experts.computes_with(), written, strict=True):
            assert torch.equal(computed, wanted)


@pytest.mark.parametrize("spoil", [0.0, 1.0])
def test_what_experts_hold_is_told_apart_from_a_file(tmp_path: Path, spoil: float) -> None:
    """One element that differs, and weights that were never packed."""
    reader = Reader(Toy(), spoil)
    weights, (_, down) = write_version(tmp_path, 1)
    found = reader.load_version(weights, "engine")
    if not spoil:
        reader.experts.w2_weight.copy_(down)
        found = reader.fingerprints_held(weights.path, 1)
    right = fingerprints(weights.path)
    assert [name for name in right if found[name] != right[name]] == [DOWN]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ["w13_weight", "w2_weight"])
def test_experts_that_ranks_share_are_read_back_rank_by_rank(
    tmp_path: Path, num_ranks: int, name: str
) -> None:
    readers = [Reader(Toy(rank, num_ranks)) for rank in range(num_ranks)]
    weights, _ = write_version(tmp_path, 1)
    right = fingerprints(weights.path)
    for reader in readers:
        assert reader.load_version(weights, "engine") == right
    getattr(readers[-1].experts, name)[-1, -1, -1] += 1
    held = [reader.fingerprints_held(weights.path, 1) for reader in readers]
    wrong = {"w13_weight": GATE_UP, "w2_weight": DOWN}[name]
    assert disputed(held).keys() == {wrong}
    attested = Attestation(
        version=1, fingerprints=agreed(held), of_ranks=disputed(held), probe_logprobs=None
    )
    learner = Attestation(version=1, fingerprints=right, probe_logprobs=None)
    said = f"engine-0 must hold the learner's {wrong} of version 1, rank {num_ranks - 1} of it does"
    with pytest.raises(WeightCheckFailed, match=f"^{said} not; tensors that differ: 1$"):
        check_tensors("engine-0", attested, learner)


def test_experts_of_another_rank_are_seen(tmp_path: Path) -> None:
    """They have the right shapes."""
    reader = Reader(Toy(0, 2))
    weights, _ = write_version(tmp_path, 1)
    reader.load_version(weights, "engine")
    reader.experts.moe_config.moe_parallel_config.tp_rank = 1
    found, right = reader.fingerprints_held(weights.path, 1), fingerprints(weights.path)
    assert {name for name in right if found[name] != right[name]} == {GATE_UP, DOWN}


def test_vllm_gets_a_version_under_its_own_names_without_what_no_version_has() -> None:
    """Mixtral's layers have another name in vLLM, GLM's routers a buffer that is a parameter."""
    model = nn.Module()
    model.block_sparse_moe = nn.Module()
    model.block_sparse_moe.gate = nn.Linear(HIDDEN, NUM, bias=False)
    model.block_sparse_moe.gate.e_score_correction_bias = nn.Parameter(torch.arange(3.0))
    model.block_sparse_moe.experts = nn.Module()
    model.block_sparse_moe.experts.routed_experts = RoutedExperts(0, 1)
    stream = {name: torch.randn(shape) for name, shape in SHAPES.items() if "experts" in name}
    stream["mlp.gate.weight"] = torch.randn(NUM, HIDDEN)
    assert checkpoint_names(model) == stream.keys()
    given = dict(loadable(model, stream))
    layer, gate_up = "block_sparse_moe", stream["mlp.experts.gate_up_proj"]
    experts = {
        f"{layer}.experts.{n}.{part}.weight" for n in range(NUM) for part in ("w1", "w2", "w3")
    }
    assert given.keys() == experts | {f"{layer}.gate.weight"}
    assert torch.equal(given[f"{layer}.experts.2.w3.weight"], gate_up[2, WIDTH:])
