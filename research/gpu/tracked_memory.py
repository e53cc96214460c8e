"""Follows the allocations of real passes of the learner on fake tensors, beside what is predicted.

    python -m research.gpu.tracked_memory          # the table of docs/learner-memory.md, no GPU

The learner's own code runs (`PolicyModel.score_and_backward`, head, update) on tensors without
numbers. Replaced is attention alone, by a function that keeps what flex_attention's kernels keep.
Leaves out what torch's allocator loses between blocks, and workspaces of libraries.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig

from research.gpu.long_tail import SHAPES, Shape
from tasks.learner import head, sharded_parameters
from tasks.learner.head import LossGradient
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.memory import FP32, learner_memory, size_of
from tasks.learner.optimizer import ShardedAdamW
from tasks.learner.packing import PackedBatch
from tasks.learner.policy import placed
from tasks.learner.ranks import Ranks
from tasks.learner.rows import row_of
from tasks.learner.tree_attention import TREE_ATTENTION, register_attention

GB = 10**9
WEIGHTS, SHARDED = LearnerConfig(), LearnerConfig(parameters="sharded")
ADAPTER = LearnerConfig(lora=LoraConfig(rank=16))
TRACKED = (  # shape, ranks, configuration
    ("0.5b", 1, WEIGHTS),
    ("1.5b", 1, WEIGHTS),
    ("7b", 8, WEIGHTS),
    ("7b", 8, SHARDED),
    ("1.5b", 1, ADAPTER),
    ("7b", 1, ADAPTER),
)


class TrackedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage that an operation in the block makes, while it lives, also
    where it is resized, as FSDP frees and refills gathered parameters."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        # the present size of each storage, in a list that outlives it
        self._sizes: Any = WeakIdKeyDictionary()  # Any: torch has no type for it
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> TrackedMemory:
        def resize(storage: torch.UntypedStorage, size: int) -> None:
            self._resize(storage, size)
            if storage in self._sizes:
                self._count(self._sizes[storage], storage.nbytes())

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:  # Any: as contextlib has it
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch calls it
        made = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._see, made)
        return made

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._sizes:
            size = self._sizes[storage] = [0]
            weakref.finalize(storage, self._count, size, 0)
            self._count(size, storage.nbytes())

    def _count(self, size: list[int], now: int) -> None:
        self.now += now - size[0]
        size[0] = now
        self.peak = max(self.peak, self.now)


class RankOfMany(Ranks):
    """The first of several ranks, without the others: collectives only allocate."""

    @property
    def group(self) -> dist.ProcessGroup:
        world = dist.group.WORLD
        assert world is not None, "`one_of_a_group` made it"
        return world

    def reduce_scatter(self, whole: Tensor, queued: bool = False) -> Tensor:
        if self.world_size == 1:
            return whole
        return torch.empty_like(whole.chunk(self.world_size)[self.rank])

    def all_gather(self, whole: Tensor, queued: bool = False) -> None:
        """Do nothing: it is done in place."""


class _KeptByFlex(torch.autograd.Function):
    """Keeps what flex_attention keeps: queries, keys, values, output and a sum for each query."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # Any: torch's context
        out = torch.zeros_like(q)
        sums = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # Any: as above
        q, k, v, out, sums = ctx.saved_tensors
        delta = torch.zeros_like(sums)
        made = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        del delta, out
        return made


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:  # Any: transformers' attention interface
    attend: Any = _KeptByFlex.apply  # Any: torch has no type for it
    return attend(query, key, value).transpose(1, 2), None


@contextmanager
def without_numbers() -> Iterator[None]:
    """Within the block attention looks at no number, and a chunk of logits is turned into
    probabilities at once, as on a GPU."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(head, "_CPU_ROWS_IN_CACHE", head.ROWS_PER_CHUNK))
        AttentionInterface.register(TREE_ATTENTION, _attend)
        stack.callback(register_attention)
        yield


def path_of(tokens: int) -> PackedBatch:
    """A row of one path, of which every token predicts the next."""
    nodes = np.arange(tokens)
    return PackedBatch(
        tokens=np.zeros_like(nodes),
        positions=nodes,
        subtree_ends=np.full_like(nodes, tokens),
        predictors=nodes,
        targets=np.zeros_like(nodes),
        samples=(),
        num_prompt_nodes=1,
    )


@contextmanager
def one_of_a_group(num_ranks: int) -> Iterator[None]:
    """Within the block this process is the first rank of a group whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    world = dist.group.WORLD
    assert world is not None, "it was made above"
    mesh = DeviceMesh.from_group(world, "cpu")
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        ready = SimpleNamespace(from_group=lambda *_: mesh)  # making one looks at numbers
        stack.enter_context(patch.object(sharded_parameters, "DeviceMesh", ready))
        stack.enter_context(patch.object(sharded_parameters, "fingerprint", lambda _: 0))
        gathered = patch.object(sharded_parameters._Gather, "__call__", lambda *_, **__: None)
        stack.enter_context(gathered)
        yield


def tracked(
    make: Callable[[], Any], config: LearnerConfig, num_ranks: int, tokens: int, *, is_fake: bool
) -> tuple[int, int]:  # Any: transformers models carry no types
    """The most bytes of a rank that trains two rows and makes an update, and the same as it is
    predicted. Sharded parameters need fake tensors."""
    ranks, is_sharded = RankOfMany(0, num_ranks, torch.device("cpu")), config.ranks_in_step
    row = row_of(path_of(tokens), ranks.device)
    group = one_of_a_group(num_ranks) if is_sharded else nullcontext()
    mode = FakeTensorMode(allow_non_fake_inputs=True) if is_fake else nullcontext()
    with without_numbers(), group, mode, TrackedMemory() as memory:
        model = make()
        size = size_of(model)
        policy = placed(
            *(model, config.compute, ranks, config.parameters),
            *(config.recompute_layers, config.lora),
        )
        optimizer = ShardedAdamW(AdamWConfig(), policy.parameters.pieces)
        loss = LossGradient(by_logp=lambda indices, logp: torch.ones_like(logp))
        gc.collect()
        memory.peak = memory.now
        for _ in range(2):
            policy.score_and_backward(row, 1.0, loss)
        gradients = policy.parameters.reduced()
        for gradient in gradients:
            gradient.div_(2.0)
        optimizer.step(gradients, 1e-6)
        policy.parameters.publish()
        # the whole fake parameters outlive their sharding; real ones do not (test_learner_sharded)
        left = FP32 * size.num_parameters if is_sharded else 0
        return memory.peak - left, learner_memory(config, size, num_ranks, tokens).peak


def model_of(shape: Shape) -> Any:  # Any: as above
    """A Llama of this shape in fp32, whose attention is the learner's."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=TREE_ATTENTION)


def main() -> int:
    """Print the table."""
    rows = Table("model", "ranks", "row", "recomputed", "tracked, GB", "predicted, GB", "ratio")
    for (name, num_ranks, of_rank), tokens, recomputes in product(TRACKED, (4096, 16384), (0, 1)):
        config = of_rank.model_copy(update={"recompute_layers": bool(recomputes)})
        make = partial(model_of, SHAPES[name])
        peak, predicted = tracked(make, config, num_ranks, tokens, is_fake=True)
        trained = f" adapter of rank {config.lora.rank}" if config.lora.rank else ""
        rows.add_row(
            f"{name} {config.parameters}{trained}",
            *(str(num_ranks), f"{tokens:,}", ["no", "yes"][recomputes]),
            *(f"{peak / GB:.1f}", f"{predicted / GB:.1f}", f"{predicted / peak:.2f}"),
        )
    Console(width=100).print(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
