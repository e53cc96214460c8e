"""Experts spread over two gloo processes compute what one process computes with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learner_factories import VOCABULARY, random_groups
from rank_processes import run_processes
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from artifacts.records import pack
from research.benchmarks.tiny_architectures import ARCHITECTURES, SIZES, save_tiny
from tasks.learner.dealing import balance
from tasks.learner.expert_parallel import MATRICES, spread_experts, spreadable
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.memory import model_size
from tasks.learner.ranks import PeerLost, Ranks
from tasks.learner.trainer import LearnerRank

EXPERTS, TOP, WIDTH = 6, 2, 16
CONFIG = SimpleNamespace(
    num_experts=EXPERTS,
    hidden_size=WIDTH,
    moe_intermediate_size=24,
    hidden_act="silu",
    _experts_implementation="eager",
)
# experts of each token, by rank: uneven numbers, one rank without tokens for the other, an expert
# without tokens, no token at all
ROUTES: dict[str, tuple[list[list[int]], list[list[int]]]] = {
    "uneven": ([[0, 5], [5, 1], [3, 0], [5, 0], [1, 2]], [[4, 0]]),
    "nothing for the other rank": ([[0, 1], [2, 0]], [[3, 4], [5, 3], [4, 3]]),
    "all to one expert": ([[2, 1]] * 4, [[2, 0]] * 3),
    "a rank without tokens": ([], [[0, 3], [1, 4]]),
    "all to the other rank": ([[3, 5]] * 2, [[1, 0]] * 5),
}
# fp32 sums in another order; bf16 sums whose terms are rounded apart
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


def make_experts() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Module()
    model.experts = Qwen3MoeExperts(CONFIG)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def tokens_of(chosen: Sequence[Sequence[int]], rank: int, dtype: torch.dtype) -> list[Tensor]:
    """Hidden states, chosen experts, their weights, and the gradient of what is made of them."""
    draw = torch.Generator().manual_seed(rank)
    num = len(chosen)
    hidden = torch.randn(num, WIDTH, generator=draw).to(dtype).requires_grad_()
    weights = torch.rand(num, TOP, generator=draw).to(dtype).requires_grad_()
    index = torch.tensor(chosen, dtype=torch.int64).view(num, TOP)
    return [hidden, index, weights, torch.randn(num, WIDTH, generator=draw).to(dtype)]


def computed(model: nn.Module, tokens: Sequence[Tensor]) -> list[Tensor]:
    """Output, and the gradients of hidden states and weights."""
    hidden, index, weights, gradient = tokens
    made = model.experts(hidden, index, weights)
    made.backward(gradient)
    assert hidden.grad is not None
    assert weights.grad is not None
    return [made.detach(), hidden.grad, weights.grad]


def check(rank: int, out: str, routes: Sequence[Sequence[Sequence[int]]]) -> None:
    """Both ranks' tokens through spread experts, twice as in two rows; each rank's alone through
    all experts, whose gradients are then summed."""
    torch.set_num_threads(1)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    ranks.join(f"file://{out}/meeting", 60.0)
    for dtype, tolerance in TOLERANCE.items():
        spread, whole = make_experts(), make_experts()
        assert spread_experts(spread, ranks) == [f"experts.{name}" for name in MATRICES]
        whole.to(dtype)
        for _ in range(2):
            found = computed(spread, tokens_of(routes[rank], rank, dtype))
        for each in range(2):
            if not routes[each]:  # of which transformers makes nothing that has a gradient
                continue
            expected = computed(whole, tokens_of(routes[each], each, dtype))
            for got, wanted in zip(found if each == rank else [], expected, strict=each == rank):
                assert got.dtype is dtype
                torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
        for name in MATRICES:
            own, all_of_them = (getattr(model.experts, name) for model in (spread, whole))
            assert own.grad.dtype is torch.float32
            assert own.numel() * 2 == all_of_them.numel()
            wanted = 2 * all_of_them.grad.float().chunk(2)[rank]
            scale = tolerance * float(all_of_them.grad.abs().max())
            torch.testing.assert_close(own.grad, wanted, rtol=tolerance, atol=scale)
            used = {expert for rows in routes for row in rows for expert in row}
            for place, gradient in enumerate(own.grad, rank * EXPERTS // 2):
                assert bool(gradient.any()) is (place in used)
    ranks.close()


@pytest.mark.parametrize("case", ROUTES)
def test_spread_experts_compute_and_learn_as_all_of_them_do(tmp_path: Path, case: str) -> None:
    run_processes(check, [(rank, str(tmp_path), ROUTES[case]) for rank in range(2)])


class LargestTensor(TorchDispatchMode):
    """Notes the elements of the largest storage that an operation in the block makes or sees."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch calls it
        made = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, made)
        return made

    def _note(self, tensor: Tensor) -> None:
        if not isinstance(tensor, DTensor):
            size = tensor.untyped_storage().nbytes() // tensor.itemsize
            self.elements = max(self.elements, size)


def _trains_and_publishes(rank: int, out: str, model: str) -> None:
    torch.set_num_threads(1)
    config = LearnerConfig(parameters="sharded", compute="fp32", kl_coefficient=0.1)
    learner = LearnerRank(config, model, rank, 2)
    learner.join(f"file://{out}/meeting", 60.0)
    size = model_size(Path(model))
    matrix = size.experts * size.expert * 2 // 3  # gate and up
    with LargestTensor() as largest:
        learner.accumulate(pack(balance(random_groups(7), 2)[rank]))
        learner.update(1)
        learner.export_weights(1, f"{out}/1.safetensors")
        learner.fingerprints()
        learner.save_checkpoint(out, 1)
    assert matrix // 2 <= largest.elements < matrix
    learner.close()


def test_no_rank_ever_has_all_experts_of_a_layer(tmp_path: Path) -> None:
    """Neither in a step nor in a publication; their matrices are by far the model's largest."""
    changes = {"num_experts": 8, "moe_intermediate_size": 256}
    model = save_tiny("qwen3_moe", tmp_path / "model", VOCABULARY, changes=changes)
    run_processes(_trains_and_publishes, [(rank, str(tmp_path), str(model)) for rank in range(2)])


def _loses_the_other(rank: int, out: str) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    ranks.join(f"file://{out}/meeting", 60.0)
    if rank:
        return
    for lost in (lambda: ranks.exchange(torch.ones(2), [1, 1], [1, 1]), ranks.check):
        with pytest.raises(PeerLost):
            lost()


def test_a_rank_that_is_lost_in_an_exchange_breaks_the_group(tmp_path: Path) -> None:
    run_processes(_loses_the_other, [(rank, str(tmp_path)) for rank in range(2)])


@pytest.mark.parametrize(
    ("name", "changes", "num_ranks", "expected"),
    [
        ("qwen3_moe", {}, 2, 2),
        ("qwen3_moe", {}, 4, 2),
        ("qwen3_moe", {}, 3, 0),  # four experts on three ranks
        ("qwen3_moe", {"moe_intermediate_size": 20}, 2, 0),  # a width that grouped products refuse
        ("mixtral", {}, 2, 2),
        ("glm4_moe", {"first_k_dense_replace": 1}, 2, 1),
        ("gpt_oss", {}, 2, 0),  # transposed, with biases
        ("llama", {}, 2, 0),
    ],
)
def test_experts_are_spread_where_ranks_can_share_them_evenly(
    name: str, changes: dict[str, int], num_ranks: int, expected: int
) -> None:
    config = AutoConfig.for_model(name, **{**SIZES, **ARCHITECTURES[name], **changes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert len(list(spreadable(model, num_ranks))) == expected
