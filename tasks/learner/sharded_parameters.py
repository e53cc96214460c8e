"""A model's parameters in shards, one on every rank, by torch's FSDP2 (`fully_shard`).

    forward   layer by layer: shards --all-gather, in the compute dtype--> whole layer -> dropped
    backward  the same backwards; whole gradients --reduce-scatter, in fp32--> sums of own shard
    update    the fp32 shards are the masters: nothing is gathered

Of several machines each holds all shards (HSDP): rows cost messages within a machine alone. The
update sums shards over machines, each of which updates a part of a shard and sends it to the rest.

A unit is gathered as a whole: a decoder layer, the embedding, the head (both together, where they
are tied), and the rest. The decoder gathers embedding and head through `whole` and reduces their
gradients through `reduce`; for layers, torch's hooks do both. Experts that ranks can share evenly
are not gathered: their shards are whole experts, to which tokens are sent (`expert_parallel`).
Every pass consists of collectives: a rank without data makes an idle pass (`micro_step`).
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

from artifacts.weights import fingerprint
from tasks.learner.architecture import text_model
from tasks.learner.expert_parallel import spread_experts
from tasks.learner.fused_layers import layers_of
from tasks.learner.parameters import Holds, Piece, every
from tasks.learner.ranks import Ranks


class ShardedParameters:
    """The parameters of a model, cut along their first dimension, a shard on every rank."""

    def __init__(
        self,
        model: Any,
        compute: torch.dtype,
        ranks: Ranks,
        kept: torch.dtype,
        holds: Holds = every,
        *,
        is_checked: bool = True,
    ) -> None:  # Any: transformers models carry no types
        """The model must be whole, in host memory; the ranks must have joined. `kept`: the dtype of
        the shards, which are gathered in dtype `compute`. holds: which of the model's parameters,
        by name; the others stay whole. is_checked: whether all ranks compare what they loaded."""
        self._model, self.device = model, ranks.device
        self._ranks, self._across = ranks.near, ranks.across
        self.compute = compute
        held = {name: each for name, each in model.named_parameters() if holds(name)}
        whole = {each for name, each in model.named_parameters() if not holds(name)}
        self.shapes: Mapping[str, torch.Size] = {name: each.shape for name, each in held.items()}
        self._checksum = sum(map(fingerprint, held.values())) if is_checked else 0
        self._spread = spread_experts(model, self._ranks)
        whole |= {held[name] for name in self._spread}
        for parameter in held.values():
            parameter.data = parameter.data.to(kept)
        units = [(modules, _names(model, modules) & held.keys()) for modules in units_of(model)]
        gathered = [name for name in self.shapes if name not in self._spread]
        self._names: dict[FSDPModule, list[str]] = {}
        self._unit_of: dict[str, FSDPModule] = {}
        for modules, names in units:
            own = [name for name in gathered if name in names - self._unit_of.keys()]
            unit = _shard(modules, compute, self._ranks, whole)
            self._names[unit] = own
            self._unit_of |= dict.fromkeys(own, unit)
        assert self._unit_of.keys() == set(gathered), "a parameter is in no unit"
        self._passed = False

        def note_pass(module: nn.Module, args: object) -> None:
            self._passed = True

        # torch's own hook comes before this one: its state of the first pass is there then
        text_model(model).register_forward_pre_hook(note_pass)

    @contextmanager
    def whole(self, name: str) -> Iterator[Tensor]:
        """Gather the parameter for the length of the block. Collective."""
        unit = self._unit_of[name]
        unit.unshard()
        try:
            yield self._model.get_parameter(name).detach()
        finally:
            unit.reshard()

    def checksum(self) -> int:
        """Of what this rank loaded: gathered parameters would be equal in any case."""
        return self._checksum

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Yield unit by unit, then experts owner by owner, in the compute dtype. Collective, to be
        exhausted on all ranks."""
        for unit, names in self._names.items():
            unit.unshard()
            try:
                for name in names:
                    yield name, self._model.get_parameter(name).detach()
            finally:
                unit.reshard()
        for name in self._spread:
            own = self._model.get_parameter(name).detach().to(self.compute)
            for owner in range(self._ranks.world_size):
                part = own if owner == self._ranks.rank else torch.empty_like(own)
                self._ranks.broadcast(part, owner)
                yield name, part

    @property
    def exported_shapes(self) -> Mapping[str, torch.Size]:
        return self.shapes

    def flat(self) -> None:
        """There is no buffer of whole parameters."""

    def forget_pass(self) -> None:
        """Have torch forget a pass that was interrupted."""
        if self._passed:
            text_model(self._model).reset_iter_state()


class TrainedShards(ShardedParameters):
    """Sharded parameters that are trained: fp32 shards, which are their own masters."""

    def __init__(
        self, model: Any, compute: torch.dtype, ranks: Ranks, holds: Holds = every
    ) -> None:  # Any: as above
        super().__init__(model, compute, ranks, torch.float32, holds)
        self.pieces = tuple(self._owned())
        # parameters of gathered units are the same objects each time; an interrupted backward pass
        # leaves gradients in them
        self._gathered: list[nn.Parameter] = []
        for unit, names in self._names.items():
            unit.unshard()
            self._gathered += map(model.get_parameter, names)
            unit.reshard()
        # for the parameters whose gradients the decoder makes itself: the sums of this pass, padded
        # so that shards are equal, and the reduced sums of this rank's shards
        self._sums: dict[str, Tensor] = {}
        self._reduced: dict[str, Tensor] = {}

    def gradient(self, name: str) -> Tensor:
        rows, *rest = self.shapes[name]
        if name not in self._sums:
            padded = self._rows(name) * self._ranks.world_size
            self._sums[name] = torch.zeros(padded, *rest, device=self.device)
        return self._sums[name][:rows]

    def reduce(self, name: str) -> None:
        """Add this pass's gradient, summed over ranks, to the sum of this shard. Collective."""
        own = self._ranks.reduce_scatter(self._sums.pop(name).flatten())
        if name in self._reduced:
            self._reduced[name] += own
        else:
            self._reduced[name] = own.clone()  # it may be a view, which would keep the whole

    def discard(self) -> None:
        self._sums.clear()
        self._reduced.clear()
        self.forget_pass()
        for parameter in (*self._model.parameters(), *self._gathered):
            parameter.grad = None

    def reduced(self) -> list[Tensor]:
        """Return the sums of this rank's pieces; every backward pass has summed those of its shards
        over this machine already. Collective over machines."""
        found: list[Tensor] = []
        for name, shard in self._shards():
            gradient = self._model.get_parameter(name).grad
            if name in self._reduced:
                total = self._reduced[name][: shard.numel()]
            elif gradient is None:
                total = torch.zeros_like(shard)
            else:
                total = _local(gradient)
            own = self._across.reduce_scatter(self._padded(total))
            found.append(own[: self._part_of(shard).numel()])
        return [own for own in found if own.numel()]

    def publish(self) -> None:
        """Send the updated pieces to the machines that repeat this shard; within a machine, every
        pass gathers the current shards. Collective over machines."""
        if self._across.world_size == 1:
            return
        with torch.no_grad():
            for _, shard in self._shards():
                whole = self._padded(shard)
                self._across.all_gather(whole)
                shard.copy_(whole[: shard.numel()])

    def _rows(self, name: str) -> int:
        """Rows of a shard as torch cuts them; the last ranks may have fewer, or none."""
        return -(-self.shapes[name][0] // self._ranks.world_size)

    def _shards(self) -> Iterator[tuple[str, Tensor]]:
        """The fp32 shards of this rank that are not empty, flat, by name."""
        for name in self.shapes:
            shard = _local(self._model.get_parameter(name))
            if shard.numel():
                yield name, shard

    def _padded(self, shard: Tensor) -> Tensor:
        """A shard that can be cut evenly over machines: itself where there is one alone."""
        short = -shard.numel() % self._across.world_size
        return torch.cat([shard, shard.new_zeros(short)]) if self._across.world_size > 1 else shard

    def _part_of(self, shard: Tensor) -> Tensor:
        """The elements that this rank updates; none, if the shard has fewer than machines."""
        length = -(-shard.numel() // self._across.world_size)
        return shard[self._across.rank * length : (self._across.rank + 1) * length]

    def _owned(self) -> Iterator[Piece]:
        for name, shard in self._shards():
            shape, own = self.shapes[name], self._part_of(shard)
            start = self._ranks.rank * self._rows(name) * shape[1:].numel()
            start += int(own.storage_offset() - shard.storage_offset())
            if own.numel():
                yield Piece(name=name, start=start, is_matrix=len(shape) > 1, masters=own)


class _RanksCollective:
    """Base of the collectives that torch calls; each allocates new memory."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_RanksCollective, AllGather):
    """Replaces torch's all-gather, so that the failure of a peer raises PeerLost."""

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
    """Replaces torch's reduce-scatter likewise; always a sum, whatever `op` is."""

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
    """The modules whose parameters are gathered together, from the inside out."""
    yield from ([layer] for layer in layers_of(model))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    yield from [[embedding, head]] if head.weight is embedding.weight else [[embedding], [head]]
    yield [text_model(model)]


def _names(model: nn.Module, modules: Sequence[nn.Module]) -> set[str]:
    """The names, within the model, of all parameters of these modules."""
    inside = {id(parameter) for module in modules for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in inside}


def _shard(
    modules: Sequence[nn.Module], compute: torch.dtype, ranks: Ranks, whole: set[nn.Parameter]
) -> FSDPModule:
    """Shard these modules but for `whole` as one unit, on its device from now on. The unit's
    gradients are summed, not averaged, and it is whole only during a pass through it."""
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    mesh = DeviceMesh.from_group(ranks.group, ranks.device.type)
    made = fully_shard(
        list(modules),
        mesh=mesh,
        reshard_after_forward=True,
        mp_policy=policy,
        ignored_params=whole or None,
    )
    unit: FSDPModule = made[0]
    unit.set_custom_all_gather(_Gather(ranks))
    unit.set_custom_reduce_scatter(_Reduce(ranks))
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    return unit


@torch.no_grad()
def _local(tensor: Tensor) -> Tensor:
    """This rank's shard as a flat view of the same memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()).view(-1)
