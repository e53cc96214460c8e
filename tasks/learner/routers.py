"""The routers of a mixture of experts: they take the experts that the engine took, and tell which.

    row's routes ─▶ router: logits ─▶ top-k, replaced by the recorded experts ─▶ their weights
                                                └─▶ counts of tokens, by layer and expert

Rounding makes engine and learner choose other experts for a token of which two are nearly equal,
which changes its log-probability by more than all other rounding. Replayed, only the choice is the
engine's: weights are the learner's own, so that gradients reach the router. A token without a
recorded route goes where its router sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ROUTER = "topkrouter"  # how transformers' classes of routers end, in lower case


class Routers:
    """All routers of one model, in the order of its layers; none of a dense model."""

    def __init__(self, model: nn.Module) -> None:
        self._routers: list[Any] = [  # Any: routers of transformers have no common type
            each for each in model.modules() if type(each).__name__.lower().endswith(ROUTER)
        ]
        self._recorded: Tensor | None = None  # (tokens, layers, experts of each)
        self._chosen: dict[int, Tensor] = {}  # by place of the router, in the pass at hand
        for place, router in enumerate(self._routers):
            router.forward = partial(self._route, place, router.forward)

    @contextmanager
    def replaying(self, routes: Tensor | None) -> Iterator[None]:
        """Within the block, which must contain the backward pass, tokens go to these experts.
        routes: (tokens, layers x experts of each), -1 where nothing was recorded; None of all.
        Raises ValueError if they are not of this model."""
        self._chosen.clear()
        if routes is None or not self._routers:
            self._check(routes)
            yield
            return
        self._check(routes)
        self._recorded = routes.view(len(routes), len(self._routers), -1)
        try:
            yield
        finally:
            self._recorded = None

    def _check(self, routes: Tensor | None) -> None:
        width = sum(router.top_k for router in self._routers)
        if routes is not None and routes.shape[1] != width:
            raise ValueError(
                f"recorded routes must have {width} experts a token, as the model has, got"
                f" {routes.shape[1]}; let rollout and learner start from the same model"
            )

    @property
    def chosen(self) -> Tensor:
        """(tokens, layers, experts of each): where the last pass sent its tokens."""
        return torch.stack([self._chosen[place] for place in range(len(self._routers))], dim=1)

    def count(self) -> Tensor | None:
        """(layers, experts): tokens of the last pass that each expert computed; None of a dense
        model. Stays on the device."""
        if not self._chosen:
            return None
        return torch.stack(
            [
                torch.bincount(self._chosen[place].flatten(), minlength=router.num_experts)
                for place, router in enumerate(self._routers)
            ]
        )

    def _route(
        self, place: int, forward: Callable[..., Sequence[Tensor]], *given: Any, **named: Any
    ) -> Sequence[Tensor]:  # Any: a router's arguments
        if self._recorded is None:
            found = forward(*given, **named)
        else:
            with _Choosing(self._routers[place].num_experts, self._recorded[:, place]):
                found = forward(*given, **named)
        self._chosen[place] = found[2].detach()  # logits, weights, experts
        return found


class _Choosing(TorchFunctionMode):
    """Within it, the largest of all experts of a token are those that were recorded."""

    def __init__(self, num_experts: int, recorded: Tensor) -> None:
        super().__init__()
        self._num_experts, self._recorded = num_experts, recorded

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's own
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return found
        experts = found[1]
        is_choice = experts.shape == self._recorded.shape and args[0].ndim == 2
        if not is_choice or args[0].shape[1] != self._num_experts:  # groups are chosen first
            return found
        experts = torch.where(self._recorded < 0, experts, self._recorded.long())
        return torch.return_types.topk((args[0].gather(1, experts), experts))
