"""The trained adapters of a decoder whose own weights stay as they are.

    base       FlatParameters or ShardedParameters: one copy in the compute dtype
    adapters   ReplicatedParameters each: whole on every rank, masters and moments cut over them

The reference of a KL term is the same decoder without any of them: no second model. Adapters are
named as PEFT names them (`artifacts.adapter_files`), without its prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from artifacts.adapter_files import A, B, merged_weights, named, read_adapter
from tasks.engines.transports.base import FlatWeights
from tasks.learner.architecture import empty_model, has_experts, read_config
from tasks.learner.fused_layers import layers_of
from tasks.learner.lora_config import ATTENTION, LoraConfig
from tasks.learner.parameters import Parameters, Piece, ReplicatedParameters

if TYPE_CHECKING:
    from tasks.learner.sharded_parameters import TrainedShards

OF = "lora_"  # before an adapter's name, in the name of the module with its two matrices


class LoraPair(nn.Module):
    """The two thin matrices of one adapter for one layer."""

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.lora_A = nn.Linear(in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, out_features, bias=False)


class AdaptedLinear(nn.Linear):
    """A linear layer with a product of two thin matrices added: those of one of its adapters, or
    for a while of none. The matrices of an adapter without a name are its own."""

    def __init__(
        self, linear: nn.Linear, rank: int, scale: float, names: Sequence[str] = ("",)
    ) -> None:
        """Takes over the weight and bias of `linear`, which are frozen."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        for name in names:
            pair = LoraPair(self.in_features, self.out_features, rank)
            if name:
                self.add_module(OF + name, pair)
            else:
                self.lora_A, self.lora_B = pair.lora_A, pair.lora_B
        self.scale = scale
        self.active: str | None = names[0]  # which adapter is added; None for none

    def pair(self, name: str) -> AdaptedLinear | LoraPair:
        """What has the matrices of an adapter."""
        found = getattr(self, OF + name) if name else self
        assert isinstance(found, AdaptedLinear | LoraPair)
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        base = functional.linear(inputs, self.weight, self.bias)
        if self.active is None:
            return base
        pair = self.pair(self.active)
        inner = functional.linear(inputs, pair.lora_A.weight)
        return base + functional.linear(inner, pair.lora_B.weight) * self.scale


def is_of_adapter(name: str) -> bool:
    """True if a parameter of this name is an adapter's."""
    return name.endswith((A, B))


def owner_of(name: str) -> str:
    """The adapter that has the parameter of this name."""
    holder = _leaf(name.removesuffix(A).removesuffix(B))
    return holder.removeprefix(OF) if holder.startswith(OF) else ""


def published_name(name: str) -> str:
    """The name under which a parameter is published: as of a lone adapter, with the name of its
    own before it."""
    owner = owner_of(name)
    return named(owner, name.replace(f".{OF}{owner}.", ".")) if owner else name


def adapt(model: Any, config: LoraConfig) -> None:  # Any: transformers models carry no types
    """Give the layers of the model, in host memory, the adapters, and freeze all else. Raises
    ValueError for modules that the model lacks or an initial adapter of another shape."""
    model.requires_grad_(False)
    for name, module in _adapted(model, config):
        adapted = AdaptedLinear(module, config.rank, config.scale, config.names)
        for adapter in config.names:
            _initialise(adapted, name, adapter, config.seed_of(adapter))
        model.set_submodule(name, adapted)
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
def _initialise(module: AdaptedLinear, name: str, adapter: str, seed: int) -> None:
    """A as PEFT draws it (Kaiming, uniform), by the module's name and the adapter's seed, so that
    all ranks and every start of a run draw the same; B is zero: the first version is the model
    itself."""
    drawn = f"{name}#{seed}" if seed else name
    number = int.from_bytes(blake2b(drawn.encode(), digest_size=7).digest(), "little")
    bound, pair = module.in_features**-0.5, module.pair(adapter)
    chance = torch.Generator().manual_seed(number)
    pair.lora_A.weight.uniform_(-bound, bound, generator=chance)
    pair.lora_B.weight.zero_()


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
def using(model: nn.Module, adapter: str | None) -> Iterator[None]:
    """Make all passes within the block with this adapter, or with none."""
    before = {
        module: module.active for module in model.modules() if isinstance(module, AdaptedLinear)
    }
    for module in before:
        module.active = adapter
    try:
        yield
    finally:
        for module, active in before.items():
            module.active = active


class FrozenParameters(Parameters, Protocol):
    """The parameters under an adapter."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]: ...

    def checksum(self) -> int: ...

    def exported(self) -> Iterator[tuple[str, Tensor]]: ...

    def forget_pass(self) -> None:
        """Forget a pass that was interrupted."""


class AdapterParameters:
    """The parameters of a decoder with adapters, which alone are trained and published."""

    def __init__(
        self,
        base: FrozenParameters,
        adapters: Mapping[str, ReplicatedParameters | TrainedShards],
    ) -> None:
        """adapters: by name; one without a name, or several."""
        self._base, self._adapters = base, adapters
        first = next(iter(adapters.values()))
        self.device, self.compute = first.device, first.compute

    def of(self, name: str) -> AdapterParameters:
        """The same with this adapter alone."""
        return self if len(self._adapters) == 1 else type(self)(self._base, self._only(name))

    def _only(self, name: str) -> Mapping[str, ReplicatedParameters | TrainedShards]:
        return {name: self._adapters[name]}

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        return {
            name: shape for each in self._adapters.values() for name, shape in each.shapes.items()
        }

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return {published_name(name): shape for name, shape in self.shapes.items()}

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for each in self._adapters.values() for piece in each.pieces)

    def whole(self, name: str) -> AbstractContextManager[Tensor]:
        return self._base.whole(name)

    def checksum(self) -> int:
        return self._base.checksum() + sum(each.checksum() for each in self._adapters.values())

    def gradient(self, name: str) -> Tensor:
        return self._adapters[owner_of(name)].gradient(name)

    def reduce(self, name: str) -> None:
        """Do nothing: the update reduces all gradients at once."""

    def discard(self) -> None:
        for each in self._adapters.values():
            each.discard()
        self._base.forget_pass()

    def reduced(self) -> list[Tensor]:
        return [gradient for each in self._adapters.values() for gradient in each.reduced()]

    def publish(self) -> None:
        for each in self._adapters.values():
            each.publish()

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        for each in self._adapters.values():
            for name, tensor in each.exported():
                yield published_name(name), tensor

    def flat(self) -> FlatWeights | None:
        """The buffer of a lone adapter; those of several are not one."""
        return self._adapters[""].flat() if "" in self._adapters else None


class MergedParameters(AdapterParameters):
    """The same, published as whole weights."""

    def __init__(self, base: FrozenParameters, adapter: ReplicatedParameters, scale: float) -> None:
        super().__init__(base, {"": adapter})
        self._scale = scale

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return self._base.shapes

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """The weights with the adapter added. Collective where the base is sharded."""
        return merged_weights(self._base.exported(), dict(super().exported()), self._scale)

    def flat(self) -> None:
        """There is no buffer of them."""
