"""Experts spread over ranks: each rank holds some of a layer's experts, whole, and computes the
tokens of all ranks that go to them.

    tokens ─▶ a copy for each ══▶ owner: products, ══▶ copies ─▶ weighted sum
              of its experts      expert by expert
                           all-to-all             all-to-all

So experts are never gathered, and their gradients, sums over the tokens of all ranks, arise where
they belong. Every pass makes two exchanges a layer (and one of counts), backward two more: ranks
work in step, and one without tokens for an expert exchanges nothing, but at the same time. Leaves
out what chooses experts (`routers`) and what keeps a rank from owning the popular ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm

from tasks.learner.ranks import Ranks

MATRICES = ("gate_up_proj", "down_proj")  # (experts, outputs, inputs), in transformers' classes
_ALIGN = 8  # elements; grouped products take widths that are multiples


def spreadable(model: nn.Module, num_ranks: int) -> Iterator[tuple[str, Any]]:
    """The modules of experts that so many ranks can share evenly, by name in the model."""
    for name, module in model.named_modules():  # Any above: transformers' experts have no type
        matrices = [getattr(module, each, None) for each in MATRICES]
        if all(isinstance(each, nn.Parameter) and each.ndim == 3 for each in matrices):
            is_plain = not (module.has_bias or module.is_transposed)
            shapes = [each.shape for each in matrices if each is not None]
            is_even = all(number % num_ranks == 0 for number, *_ in shapes)
            if is_plain and is_even and not any(n % _ALIGN for _, *w in shapes for n in w):
                yield name, module


def spread_experts(model: nn.Module, ranks: Ranks) -> list[str]:
    """Leave this rank its own experts of every module, which lie on its device from now on, and
    have them compute the tokens of all ranks. Returns the names of their parameters, which must be
    whole. Experts that ranks cannot share evenly stay as they are."""
    names = []
    for name, module in spreadable(model, ranks.world_size):
        num_experts = len(getattr(module, MATRICES[0]))
        for matrix in MATRICES:
            parameter = getattr(module, matrix)
            own = parameter.data.chunk(ranks.world_size)[ranks.rank]
            parameter.data = own.to(ranks.device, copy=True)
            names.append(f"{name}.{matrix}")
        module.forward = SpreadExperts(module, num_experts, ranks)
    return names


class SpreadExperts:
    """The forward pass of one layer's experts. Collective, and so is its backward pass."""

    def __init__(self, experts: Any, num_experts: int, ranks: Ranks) -> None:  # Any: as above
        self._experts, self._ranks = experts, ranks
        self._num_experts, self._num_own = num_experts, num_experts // ranks.world_size

    def __call__(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """hidden: (tokens, width); chosen, weights: (tokens, experts of each)."""
        top = chosen.shape[1]
        experts = chosen.flatten()
        order = experts.argsort(stable=True)  # owners own consecutive experts
        counts = torch.bincount(experts, minlength=self._num_experts)
        arriving = self._swapped(counts)
        sends, receives = (each.sum(1).tolist() for each in (self._by_rank(counts), arriving))
        # not hidden[order // top], whose gradient adds in no certain order on a GPU
        copies = hidden[:, None].expand(-1, top, -1).flatten(0, 1)
        arrived = self._exchange(copies.index_select(0, order), sends, receives)
        computed = self._computed(arrived, arriving)
        returned = self._exchange(computed, receives, sends).index_select(0, order.argsort())
        weighted = returned.view(*chosen.shape, hidden.shape[1]) * weights[..., None]
        return weighted.sum(1).to(hidden.dtype)

    def _computed(self, arrived: Tensor, arriving: Tensor) -> Tensor:
        """What own experts make of copies, in the order of these: by rank, then by expert.
        arriving: (ranks, own experts), numbers of copies."""
        own = torch.arange(self._num_own, device=arrived.device).repeat(len(arriving))
        order = own.repeat_interleave(arriving.flatten()).argsort(stable=True)
        ends = arriving.sum(0).cumsum(0).to(torch.int32)
        product: Any = _Product.apply  # Any: torch has no type for it
        rows = arrived.index_select(0, order)
        gated = self._experts._apply_gate(product(rows, self._experts.gate_up_proj, ends))
        made: Tensor = product(gated, self._experts.down_proj, ends)
        return made.index_select(0, order.argsort())

    def _by_rank(self, counts: Tensor) -> Tensor:
        return counts.view(-1, self._num_own)

    def _swapped(self, counts: Tensor) -> Tensor:
        """(ranks, own experts): how many copies every rank sends. counts: (experts,), what this
        one sends."""
        evenly = [self._num_own] * self._ranks.world_size
        return self._by_rank(self._ranks.exchange(counts, evenly, evenly))

    def _exchange(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        exchange: Any = _Exchange.apply  # Any: torch has no type for it
        received: Tensor = exchange(rows, self._ranks, sends, receives)
        return received


class _Exchange(torch.autograd.Function):
    """Sends rows to ranks; backward sends their gradients to where rows came from."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, ranks: Ranks, sends: Sequence[int], receives: Sequence[int]
    ) -> Tensor:  # Any: torch's context
        ctx.ranks, ctx.backwards = ranks, (receives, sends)
        return ranks.exchange(rows, sends, receives)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # Any: as above
        return ctx.ranks.exchange(grad.contiguous(), *ctx.backwards), None, None, None


class _Product(torch.autograd.Function):
    """Multiplies the rows of each expert by its matrix, rounded to their dtype: in backward anew,
    so that nothing but the fp32 matrices is kept in between. Their gradient is fp32."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:  # Any: as above
        ctx.save_for_backward(rows, matrices, ends)
        return grouped_mm(rows, matrices.to(rows.dtype).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # Any: as above
        rows, matrices, ends = ctx.saved_tensors
        grad = grad.contiguous()
        of_rows = grouped_mm(grad, matrices.to(grad.dtype), offs=ends)
        if not ctx.needs_input_grad[1]:
            return of_rows, None, None
        return of_rows, grouped_mm(grad.t(), rows, offs=ends).to(matrices.dtype), None
