"""Attention over a packed prefix tree: each token sees its ancestors and itself, nothing else.

`register_attention` registers it with transformers, so that any of its decoders runs on packed
rows: pass `tree=TreePlan` through the model's keyword arguments. On CUDA the mask goes to
flex_attention. A CPU processes the row in blocks of queries, whose keys are the path above the
first token and the block itself, so that no T x T matrix exists. It uses plain matrix products,
with the query heads of one key head folded together: torch's fused kernel takes 1.5 to 2 times as
long for the backward pass in bf16. Probabilities are kept for backward, scores are in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from artifacts.models.importing import importing_transformers

TREE_ATTENTION = "rollflow_tree"  # its name in transformers
QUERIES_PER_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBlock:
    """A block of consecutive queries, and the keys that they attend to."""

    start: int  # first query
    end: int  # one past the last query
    # half-open ranges of keys, in order; the last one is the block itself
    key_spans: tuple[tuple[int, int], ...]
    hidden: Tensor  # bool (queries, keys): True where a query must not attend to the key


@dataclass(frozen=True)
class TreePlan:
    """The attention mask of a packed row, and the blocks in which the CPU processes it."""

    subtree_ends: Tensor  # int64 (T,)
    positions: Tensor  # int64 (T,): the depth of each node
    queries_per_block: int = field(default_factory=lambda: QUERIES_PER_BLOCK)
    window: int | None = None  # number of nearest ancestors that a token sees, itself included
    depth: int | None = None  # the largest position; None: read where the positions lie
    _windowed: dict[int, TreePlan] = field(default_factory=dict)  # this row under other windows

    def within(self, window: int | None) -> TreePlan:
        """The plan for a layer with this sliding window; this plan itself without a window, or if
        no path is longer than the window."""
        depth = int(self.positions.max()) if self.depth is None else self.depth
        if window is None or window > depth:
            return self
        if window not in self._windowed:
            self._windowed[window] = TreePlan(
                self.subtree_ends, self.positions, self.queries_per_block, window
            )
        return self._windowed[window]

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """True where node `query` attends to node `key`; broadcasts."""
        seen = is_ancestor(self.subtree_ends, query, key)
        if self.window is None:
            return seen
        return seen & (self.positions[query] - self.positions[key] < self.window)

    @cached_property
    def blocks(self) -> tuple[QueryBlock, ...]:
        plan = TreePlan(
            self.subtree_ends.cpu(), self.positions.cpu(), self.queries_per_block, self.window
        )
        size, step = self.subtree_ends.numel(), self.queries_per_block
        return tuple(_block(plan, start, min(start + step, size)) for start in range(0, size, step))

    @cached_property
    def block_mask(self) -> Any:  # Any: torch's BlockMask, private to flex_attention
        """Which blocks of keys a block of queries needs (not empty), and in which of them every
        query sees every key (full). Made from blocks, so that T x T entries never exist.

        In preorder the first query of a block sees a key before the block if any of its queries
        does, and all of them see the key if the last one does. With a window, a block of which
        every key is too far away is empty; one may be kept that has no pair within the window.
        """
        from torch.nn.attention.flex_attention import BlockMask

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return self.sees(query, key)

        size, step = self.subtree_ends.numel(), self.queries_per_block
        starts = torch.arange(0, size, step, device=self.subtree_ends.device)
        is_earlier = starts[:, None] > starts[None, :]
        last_end, first_end = _block_extremes(self.subtree_ends, step)
        needed = (is_earlier & (last_end > starts[:, None])) | (starts[:, None] == starts)
        full = is_earlier & (first_end >= starts[:, None] + step)
        if self.window is not None:
            deepest, shallowest = _block_extremes(self.positions, step)
            needed &= shallowest[:, None] - deepest < self.window
            full &= deepest[:, None] - shallowest < self.window
        partial = (needed & ~full)[None, None]
        return BlockMask.from_kv_blocks(
            *_ordered(partial), *_ordered(full[None, None]), step, sees, (size, size)
        )


def is_ancestor(subtree_ends: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """True where node `key` is on the path from the root to node `query`, itself included."""
    return (key <= query) & (query < subtree_ends[key])


def _block_extremes(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest and the smallest of values (T,) in each block of this size; the last block may be
    shorter."""
    short = -values.numel() % size
    blocks = torch.cat([values, values[-1:].expand(short)]).view(-1, size)
    return blocks.amax(1), blocks.amin(1)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For booleans (1, 1, query blocks, key blocks): the number of true ones in each row, and the
    indices of all in a row, the true ones first, as flex_attention has them."""
    indices = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32)


def _block(plan: TreePlan, start: int, end: int) -> QueryBlock:
    """Make one block. An ancestor before `start` of any query in the block is an ancestor of
    `start`, too, because preorder keeps subtrees together."""
    path = torch.nonzero(plan.subtree_ends[:start] > start).flatten()
    keys = torch.cat([path, torch.arange(start, end)])
    gaps = (torch.nonzero(path.diff() > 1).flatten() + 1).tolist()
    cuts = [0, *gaps, path.numel()] if path.numel() else []
    spans = [(int(path[a]), int(path[b - 1]) + 1) for a, b in pairwise(cuts)]
    hidden = ~plan.sees(torch.arange(start, end)[:, None], keys[None, :])
    return QueryBlock(start=start, end=end, key_spans=(*spans, (start, end)), hidden=hidden)


class _TreeBlocks(torch.autograd.Function):
    """q (H, T, D), k (K, T, D) and v (K, T, E) with H a multiple of K -> (H, T, E)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, scale: float
    ) -> Tensor:  # Any: torch's context
        out = q.new_empty(*q.shape[:2], v.shape[2])
        kept: list[Tensor] = []
        for block in plan.blocks:
            rows = slice(block.start, block.end)
            queries, keys = _fold(q[:, rows], k.shape[0]).float(), _gather(k, block).float()
            scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(scale)
            folded = scores.view(k.shape[0], -1, *block.hidden.shape)
            masked = folded.masked_fill_(block.hidden, float("-inf")).view_as(scores)
            probabilities = masked.softmax(-1).to(q.dtype)
            attended = torch.bmm(probabilities, _gather(v, block))
            out[:, rows] = attended.view(q.shape[0], -1, v.shape[2])
            kept.append(probabilities)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:  # Any: torch's context
        q, k, v, *kept = ctx.saved_tensors
        grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
        grad_k, grad_v = (
            torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v)
        )
        for block, probabilities in zip(ctx.plan.blocks, kept, strict=True):
            rows = slice(block.start, block.end)
            grad_out = _fold(grad[:, rows], k.shape[0])
            _scatter(grad_v, block, torch.bmm(probabilities.transpose(1, 2), grad_out))
            grad_p = torch.bmm(grad_out, _gather(v, block).transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_p, probabilities, -1, q.dtype)
            by_query = torch.bmm(grad_scores, _gather(k, block)).mul_(ctx.scale)
            grad_q[:, rows] = by_query.view(q.shape[0], -1, q.shape[2])
            queries = _fold(q[:, rows], k.shape[0])
            by_key = torch.bmm(grad_scores.transpose(1, 2), queries).mul_(ctx.scale)
            _scatter(grad_k, block, by_key)
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), None, None


def _fold(x: Tensor, num_key_heads: int) -> Tensor:
    """(H, n, D) -> (K, H/K * n, D): the query heads of each key head one after another."""
    return x.reshape(num_key_heads, -1, x.shape[2])


def _gather(x: Tensor, block: QueryBlock) -> Tensor:
    return torch.cat([x[:, start:end] for start, end in block.key_spans], dim=1)


def _scatter(total: Tensor, block: QueryBlock, part: Tensor) -> None:
    offset = 0
    for start, end in block.key_spans:
        total[:, start:end] += part[:, offset : offset + end - start]
        offset += end - start


@cache
def _compiled_flex() -> Any:  # Any: a compiled function
    """Compiled once for each way in which it is called: with and without gradients, one block or
    several, each window. Beyond its usual 8 ways dynamo would compute T x T scores silently."""
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def flex(query: Tensor, key: Tensor, value: Tensor, plan: TreePlan, scale: float) -> Tensor:
    """(1, heads, T, D) likewise, by torch's flex_attention, compiled."""
    out: Tensor = _compiled_flex()(
        query,
        key,
        value,
        block_mask=plan.block_mask,
        scale=scale,
        enable_gqa=True,
        kernel_options={"BACKEND": "TRITON"},  # not its kernel for decoding, for short rows too
    )
    return out


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    tree: TreePlan,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # Any: transformers' attention keyword arguments
    """With transformers' attention signature: (1, heads, T, D) -> (1, T, heads, D)."""
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"packed attention has no {name}, the model asks for {kwargs[name]}; use a model"
                " without it"
            )
    plan = tree.within(kwargs.get("sliding_window"))
    attend: Any = _TreeBlocks.apply  # Any: torch has no type for it
    if query.is_cuda:
        out = flex(query, key, value, plan, scaling)
    else:
        out = attend(query[0], key[0], value[0], plan, scaling)[None]
    return out.transpose(1, 2), None


def register_attention() -> None:
    """Register TREE_ATTENTION with transformers, which is imported here, because the import takes
    seconds and most processes of a run hold no model."""
    with importing_transformers():
        from transformers import AttentionInterface

    AttentionInterface.register(TREE_ATTENTION, tree_attention)
