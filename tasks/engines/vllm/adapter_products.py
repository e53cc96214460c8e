"""The product of an adapter's matrices on CPUs, a pair of plain matrix products for all tokens of a
batch that run with it. vLLM copies A and B once for every token there, which takes longer than the
model's own products.

    rows of the batch ─▶ by adapter ─▶ y += (x A') B'

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_adapter_products.py`: layers look up
`add_lora_linear` on their wrapper; `update_metadata` is called for every batch whose tokens have
other adapters than the one before; `token_lora_indices` is the slot of each token, -1 for the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # read without torch, as `adapter_slot` is
    from torch import Tensor

_SMALL = 2**14  # numbers of a batch, up to which products in bf16 take longer than in fp32


def multiply_by_adapter(manager: Any) -> None:  # Any: vLLM's manager of adapters
    """Have all layers of a CPU engine multiply so; other devices have kernels of their own."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    for wrapper in manager.punica_wrapper_mapping.values():
        if type(wrapper) is PunicaWrapperCPU and not hasattr(wrapper, "products"):
            wrapper.products = Products(wrapper)


class Products:
    """Takes the place of a wrapper's method, and follows which tokens run with which adapter."""

    def __init__(self, wrapper: Any) -> None:  # Any: vLLM's
        self._wrapper, self._update = wrapper, wrapper.update_metadata
        self._rows = rows_of(wrapper.token_lora_indices)  # by slot
        wrapper.update_metadata, wrapper.add_lora_linear = self._follow, self.add

    def _follow(self, *given: object, **named: object) -> None:
        self._update(*given, **named)
        self._rows = rows_of(self._wrapper.token_lora_indices)

    def add(
        self,
        y: Tensor,
        x: Tensor,
        firsts: Sequence[Tensor],
        seconds: Sequence[Tensor],
        scale: float,
        sizes: Sequence[int],
        **_: object,
    ) -> None:
        """Add to y, T x (the sum of sizes), the products of x, T x inputs. firsts and seconds: A
        and B of each part of a fused layer, slots x 1 x rank x inputs and slots x 1 x size x rank;
        sizes: outputs of each part."""
        for slot, rows in self._rows.items():
            given, target = x[rows], y[rows]
            is_small = given.numel() <= _SMALL
            given = given.float() if is_small else given
            for first, second, part in zip(
                firsts, seconds, target.split_with_sizes(list(sizes), 1), strict=True
            ):
                thin = given @ first[slot, 0].to(given).T
                if is_small:
                    part.add_(thin @ second[slot, 0].to(given).T, alpha=scale)
                else:
                    part.addmm_(thin, second[slot, 0].T, alpha=scale)
            if not isinstance(rows, slice):  # of which `target` is a copy
                y[rows] = target


def rows_of(slots: Tensor) -> dict[int, slice | Tensor]:
    """The rows of each slot but the base's: all of them, or their numbers. slots: T integers."""
    found = sorted(set(slots.tolist()))
    if len(found) == 1:
        return {slot: slice(None) for slot in found if slot >= 0}
    return {slot: (slots == slot).nonzero()[:, 0] for slot in found if slot >= 0}
