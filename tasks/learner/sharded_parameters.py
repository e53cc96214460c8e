"""A model's parameters in shards, one on every rank, by torch's FSDP2 (`fully_shard`).

    forward   layer by layer: shards --all-gather, in the compute dtype--> whole layer -> dropped
    backward  the same backwards; whole gradients --reduce-scatter, in fp32--> sums of own shard
    update    the fp32 shards are the masters: nothing is gathered

Units that are whole at a time: a decoder layer, the embedding, the head (or both, where they are
tied), and what is left, the final norm. The decoder reads embedding and head itself: it gathers
them through `whole` and reduces their gradients through `reduce`. Layers do both in torch's hooks.

Every pass is made of collectives, so that all ranks make the same passes in the same order; a rank
without data makes an idle one (micro_step).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor

from artifacts.models.importing import importing_transformers
from artifacts.weights import fingerprint
from tasks.learner.parameters import Piece
from tasks.learner.ranks import Ranks


class ShardedParameters:
    """Leaves every rank one shard of a model's parameters, each cut along its first dimension."""

    def __init__(
        self, model: Any, compute: torch.dtype, ranks: Ranks, kept: torch.dtype
    ) -> None:  # Any: transformers models carry no types
        """The model is whole, in the host's memory; the ranks have joined. `kept`: the dtype of the
        shards, which are gathered in `compute`."""
        self._model, self._ranks = model, ranks
        self.shapes: Mapping[str, torch.Size] = {
            name: parameter.shape for name, parameter in model.named_parameters()
        }
        for parameter in model.parameters():
            parameter.data = parameter.data.to(kept)
        units = [(modules, _names(model, modules)) for modules in units_of(model)]
        self._names: dict[FSDPModule, list[str]] = {}
        self._unit_of: dict[str, FSDPModule] = {}
        for modules, names in units:
            own = [name for name in names if name not in self._unit_of]
            unit = _shard(modules, compute, ranks)
            self._names[unit] = own
            self._unit_of |= dict.fromkeys(own, unit)
        assert self._unit_of.keys() == self.shapes.keys(), "a parameter is in no unit"

    @property
    def device(self) -> torch.device:
        return self._ranks.device

    @contextmanager
    def whole(self, name: str) -> Iterator[Tensor]:
        """Collective."""
        unit = self._unit_of[name]
        unit.unshard()
        try:
            yield self._model.get_parameter(name).detach()
        finally:
            unit.reshard()


class TrainedShards(ShardedParameters):
    """Shards that are trained (`TrainedParameters`): fp32, so that they are their own masters."""

    def __init__(
        self, model: Any, compute: torch.dtype, ranks: Ranks
    ) -> None:  # Any: transformers models carry no types
        self._checksum = sum(fingerprint(parameter) for parameter in model.parameters())
        super().__init__(model, compute, ranks, kept=torch.float32)
        self.pieces = tuple(self._owned())
        self._gathered = list(self._gathered_parameters())
        self._passed = False
        # of parameters whose gradients the decoder makes: the sums of this pass, padded so that
        # shards are equal, and those of own shards
        self._sums: dict[str, Tensor] = {}
        self._reduced: dict[str, Tensor] = {}

        def note_pass(module: nn.Module, args: object) -> None:
            self._passed = True

        # torch's own hook comes before this one: its state of the first pass is there then
        model.base_model.register_forward_pre_hook(note_pass)

    def checksum(self) -> int:
        """Of what this rank loaded; gathered parameters would be the same on every rank."""
        return self._checksum

    def gradient(self, name: str) -> Tensor:
        rows, *rest = self.shapes[name]
        if name not in self._sums:
            padded = self._rows(name) * self._ranks.world_size
            self._sums[name] = torch.zeros(padded, *rest, device=self.device)
        return self._sums[name][:rows]

    def reduce(self, name: str) -> None:
        """Collective."""
        own = self._ranks.reduce_scatter(self._sums.pop(name).flatten())
        if name in self._reduced:
            self._reduced[name] += own
        else:
            self._reduced[name] = own.clone()  # it may be a view, which would keep the whole

    def discard(self) -> None:
        self._sums.clear()
        self._reduced.clear()
        if self._passed:
            self._model.base_model.reset_iter_state()
        for parameter in (*self._model.parameters(), *self._gathered):
            parameter.grad = None

    def reduced(self) -> list[Tensor]:
        """Every backward pass has reduced its gradients already."""
        return [self._gradient_of(piece) for piece in self.pieces]

    def publish(self) -> None:
        """Nothing to do: whoever computes gathers."""

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Unit by unit, in the compute dtype. Collective: all ranks must go to the end."""
        for unit, names in self._names.items():
            unit.unshard()
            try:
                for name in names:
                    yield name, self._model.get_parameter(name).detach()
            finally:
                unit.reshard()

    def _gathered_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of every unit while it is whole, the same objects every time: an
        interrupted backward leaves gradients with them. Collective."""
        for unit, names in self._names.items():
            unit.unshard()
            yield from map(self._model.get_parameter, names)
            unit.reshard()

    def _gradient_of(self, piece: Piece) -> Tensor:
        if piece.name in self._reduced:
            return self._reduced[piece.name][: piece.masters.numel()]
        gradient = self._model.get_parameter(piece.name).grad
        return torch.zeros_like(piece.masters) if gradient is None else _local(gradient)

    def _rows(self, name: str) -> int:
        """Rows of a shard, as torch cuts them: the last ranks may have fewer, or none."""
        return -(-self.shapes[name][0] // self._ranks.world_size)

    def _owned(self) -> Iterator[Piece]:
        for name, shape in self.shapes.items():
            masters = _local(self._model.get_parameter(name))
            if masters.numel():
                yield Piece(
                    name=name,
                    start=self._ranks.rank * self._rows(name) * shape[1:].numel(),
                    is_matrix=len(shape) > 1,
                    masters=masters,
                )


class _RanksCollective:
    """A collective that torch has the ranks make, in new memory."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_RanksCollective, AllGather):
    """torch's all-gather, with a type for the failure of a peer."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        own = output_tensor.chunk(self._ranks.world_size)[self._ranks.rank]
        assert input_tensor.data_ptr() == own.data_ptr(), "torch gathers in place"
        self._ranks.all_gather(output_tensor, queued=True)


class _Reduce(_RanksCollective, ReduceScatter):
    """The same for torch's reduce-scatter: a sum, whatever else it is asked."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(self._ranks.reduce_scatter(input_tensor, queued=True))


def units_of(model: Any) -> Iterator[list[nn.Module]]:  # Any: transformers models carry no types
    """Modules whose parameters are whole together, from the inside out."""
    with importing_transformers():
        from transformers.modeling_layers import GradientCheckpointingLayer

    for module in model.base_model.modules():
        if isinstance(module, GradientCheckpointingLayer):  # what decoder layers derive from
            yield [module]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    yield from [[embedding, head]] if head.weight is embedding.weight else [[embedding], [head]]
    yield [model.base_model]


def _names(model: nn.Module, modules: Sequence[nn.Module]) -> list[str]:
    """The parameters of these modules, under the names that the model has for them."""
    inside = {id(parameter) for module in modules for parameter in module.parameters()}
    return [name for name, parameter in model.named_parameters() if id(parameter) in inside]


def _shard(modules: Sequence[nn.Module], compute: torch.dtype, ranks: Ranks) -> FSDPModule:
    """One unit; on its device from now on. Its gradients are summed, not averaged, and it is whole
    no longer than a pass through it."""
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    world = dist.group.WORLD
    assert world is not None, "shards need ranks that have joined"
    mesh = DeviceMesh.from_group(world, ranks.device.type)
    made = fully_shard(list(modules), mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    unit: FSDPModule = made[0]
    unit.set_custom_all_gather(_Gather(ranks))
    unit.set_custom_reduce_scatter(_Reduce(ranks))
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    return unit


@torch.no_grad()
def _local(tensor: Tensor) -> Tensor:
    """This rank's shard, flat: the same memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local().view(-1)
