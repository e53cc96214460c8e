"""The trained adapter of a decoder whose own weights stay as they are.

    base      FlatParameters or ShardedParameters: one copy in the compute dtype
    adapter   ReplicatedParameters: whole on every rank, masters and moments cut over the ranks

The reference of a KL term is the same decoder with its adapter left out: no second model. Adapters
are named as PEFT names them (`artifacts.adapter_files`), without its prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from artifacts.adapter_files import A, B, merged_weights, read_adapter
from tasks.engines.transports.base import FlatWeights
from tasks.learner.architecture import empty_model, has_experts, read_config
from tasks.learner.fused_layers import layers_of
from tasks.learner.lora_config import ATTENTION, LoraConfig
from tasks.learner.parameters import Parameters, Piece, ReplicatedParameters


class AdaptedLinear(nn.Linear):
    """A linear layer with a product of two thin matrices added, or left out for a while."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        """Takes over the weight and bias of `linear`, which are frozen."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_A = nn.Linear(self.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False)
        self.scale, self.is_on = scale, True

    def forward(self, inputs: Tensor) -> Tensor:
        base = functional.linear(inputs, self.weight, self.bias)
        if not self.is_on:
            return base
        inner = functional.linear(inputs, self.lora_A.weight)
        return base + functional.linear(inner, self.lora_B.weight) * self.scale


def is_of_adapter(name: str) -> bool:
    """True if a parameter of this name is an adapter's."""
    return name.endswith((A, B))


def adapt(model: Any, config: LoraConfig) -> None:  # Any: transformers models carry no types
    """Give the layers of the model, in host memory, an adapter, and freeze all else. Raises
    ValueError for modules that the model lacks or an initial adapter of another shape."""
    model.requires_grad_(False)
    for name, module in _adapted(model, config):
        model.set_submodule(
            name, _initialised(AdaptedLinear(module, config.rank, config.scale), name)
        )
    if config.initial:
        _start_from(model, config)


def check_adapter(config: LoraConfig, path: Path) -> None:
    """Check, by its configuration alone, that the model in a directory can have this adapter, and
    begin with the saved one. Raises ValueError as `adapt` does, and for experts."""
    described = read_config(path)
    if has_experts(described) and set(config.modules) - set(ATTENTION):
        raise ValueError(
            "learner.lora.targets must be matrices of attention in a model with experts, whose own"
            f" have no adapters, got {config.targets}; set it to attention"
        )
    modules = _adapted(empty_model(described), config)
    if config.initial:
        shapes = {name + A: (config.rank, each.in_features) for name, each in modules}
        shapes |= {name + B: (each.out_features, config.rank) for name, each in modules}
        _saved(shapes, config)


def _adapted(model: Any, config: LoraConfig) -> list[tuple[str, nn.Linear]]:  # Any: as above
    """The modules that the adapter changes, with their names."""
    names = {id(module): name for name, module in model.named_modules()}
    wanted = [
        (names[id(module)], module)
        for layer in layers_of(model)
        for module in layer.modules()
        if isinstance(module, nn.Linear) and _leaf(names[id(module)]) in config.modules
    ]
    found = {_leaf(name) for name, _ in wanted}
    asked = set(config.targets) if not isinstance(config.targets, str) else set()
    if not wanted or asked - found:
        linear = {_leaf(n) for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        raise ValueError(
            "learner.lora.targets must name matrices of the model's layers, got"
            f" {sorted(asked - found) or config.targets}; the model has {', '.join(sorted(linear))}"
        )
    return wanted


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


@torch.no_grad()
def _initialised(module: AdaptedLinear, name: str) -> AdaptedLinear:
    """A as PEFT draws it (Kaiming, uniform), by the module's name, so that all ranks and every
    start of a run draw the same; B is zero: the first version is the model itself."""
    seed = int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "little")
    bound = module.in_features**-0.5
    module.lora_A.weight.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    module.lora_B.weight.zero_()
    return module


@torch.no_grad()
def _start_from(model: nn.Module, config: LoraConfig) -> None:
    own = {name: each for name, each in model.named_parameters() if is_of_adapter(name)}
    saved = _saved({name: tuple(each.shape) for name, each in own.items()}, config)
    for name, parameter in own.items():
        parameter.copy_(saved[name])


def _saved(shapes: Mapping[str, tuple[int, ...]], config: LoraConfig) -> Mapping[str, Tensor]:
    """The tensors of the adapter to begin with. Raises ValueError for one of other shapes."""
    saved = read_adapter(config.initial)
    given = {name: tuple(each.shape) for name, each in saved.tensors.items()}
    if shapes != given or saved.scale != config.scale:
        differing = sorted(
            name for name in {*shapes, *given} if shapes.get(name) != given.get(name)
        )
        what = differing[0] if differing else f"scale {saved.scale:g}, not {config.scale:g}"
        raise ValueError(
            "learner.lora.initial must be an adapter with the rank, alpha and targets of"
            f" learner.lora, {config.initial} differs in {what}; set them to its own"
        )
    return saved.tensors


@contextmanager
def left_out(model: nn.Module) -> Iterator[None]:
    """Leave the adapter out of all passes within the block."""
    adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.is_on = False
    try:
        yield
    finally:
        for module in adapted:
            module.is_on = True


class FrozenParameters(Parameters, Protocol):
    """The parameters under an adapter."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]: ...

    def checksum(self) -> int: ...

    def exported(self) -> Iterator[tuple[str, Tensor]]: ...

    def forget_pass(self) -> None:
        """Forget a pass that was interrupted."""


class AdapterParameters:
    """The parameters of a decoder with an adapter, which alone is trained and published."""

    def __init__(self, base: FrozenParameters, adapter: ReplicatedParameters) -> None:
        self._base, self._adapter = base, adapter
        self.device, self.compute = adapter.device, adapter.compute

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        return self._adapter.shapes

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return self.shapes

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self._adapter.pieces

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        return self._base.whole(name)

    def checksum(self) -> int:
        return self._base.checksum() + self._adapter.checksum()

    def gradient(self, name: str) -> Tensor:
        return self._adapter.gradient(name)

    def reduce(self, name: str) -> None:
        self._adapter.reduce(name)

    def discard(self) -> None:
        self._adapter.discard()
        self._base.forget_pass()

    def reduced(self) -> list[Tensor]:
        return self._adapter.reduced()

    def publish(self) -> None:
        self._adapter.publish()

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        return self._adapter.exported()

    def flat(self) -> FlatWeights | None:
        return self._adapter.flat()


class MergedParameters(AdapterParameters):
    """The same, published as whole weights."""

    def __init__(self, base: FrozenParameters, adapter: ReplicatedParameters, scale: float) -> None:
        super().__init__(base, adapter)
        self._scale = scale

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return self._base.shapes

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """The weights with the adapter added. Collective where the base is sharded."""
        return merged_weights(self._base.exported(), dict(self._adapter.exported()), self._scale)

    def flat(self) -> None:
        """There is no buffer of them."""
