"""Data parallelism with a sharded optimizer (ZeRO-1) over the flat buffers; the same code on gloo
and NCCL.

    gradients (every rank, whole) --reduce-scatter--> own slice -> divide, clip, AdamW on fp32
    masters -> values --all-gather--> whole

Each rank owns an equal slice of masters and moments. One rank works without torch.distributed.
Leaves out when to update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.optim.adamw import adamw

from tasks.learner.exchange import add_up, spread
from tasks.learner.flat_parameters import FlatParameters


class AdamWConfig(BaseModel):
    """The optimizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=2e-5, gt=0, description="Learning rate after the warm-up.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Steps over which the learning rate rises linearly from zero."
    )
    decay_steps: int = Field(
        default=0,
        ge=0,
        description="Step by which the learning rate has fallen linearly to its floor; 0: never.",
    )
    floor_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Floor of a falling learning rate, as a share of the full one.",
    )
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Decay of the gradient's running mean."
    )
    beta2: float = Field(
        default=0.95, ge=0, lt=1, description="Decay of the squared gradient's running mean."
    )
    epsilon: float = Field(
        default=1e-8, gt=0, description="Added to the root of the second moment."
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Decoupled weight decay of matrices; vectors are never decayed.",
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        description="Bound on the global gradient norm, applied after the division.",
    )

    @model_validator(mode="after")
    def _check(self) -> AdamWConfig:
        if 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"optimizer.decay_steps must be 0 or beyond warmup_steps ({self.warmup_steps}), got"
                f" {self.decay_steps}; set it to the run's num_steps, or to 0 for a constant rate"
            )
        return self

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1: up over the warm-up, then down to the floor,
        which it keeps."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        fallen = (
            min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
            if self.decay_steps
            else 0.0
        )
        return self.learning_rate * (1.0 - fallen * (1.0 - self.floor_fraction))


OWN_FAILURES = (torch.OutOfMemoryError, torch.AcceleratorError)  # of the rank itself, wherever met


class PeerLost(RuntimeError):
    """Another rank died or fell silent in something that all ranks do together; the group is of no
    use to anybody from then on."""


class Ranks:
    """The ranks of a learner and what they do together. All but `join` and `close` are no-ops for
    one rank."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank must lie in 0..{world_size - 1}, got {rank}; number the learner's devices"
                " from 0"
            )
        self.rank, self.world_size, self._device = rank, world_size, device
        self._joined = False
        self._lost: str | None = None  # what broke the group

    def join(self, init_method: str, deadline_s: float) -> None:
        """Enter the group; the deadline holds for entering and for every collective after it.

        A process is in one group at a time: ranks that lost their peers may be made anew in it, and
        the group they were in is left here.
        """
        if self.world_size == 1:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        with self._together("join"):
            dist.init_process_group(
                backend,
                init_method=init_method,
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=deadline_s),
            )
        self._joined = True

    def check(self) -> None:
        """Raise PeerLost when the group is broken, or was never entered because the recovery that
        made this rank broke off; waits for nothing."""
        self._check_group()
        if self.world_size > 1 and not self._joined:
            raise PeerLost(f"rank {self.rank} of {self.world_size} is in no group with the others")

    def _check_group(self) -> None:
        if self._lost is not None:
            raise PeerLost(self._lost)

    def close(self) -> None:
        """Leave the group."""
        if self._joined and dist.is_initialized():
            dist.destroy_process_group()
        self._joined = False

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in fp64."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        self._require_joined()
        with self._together("sum"):
            dist.all_reduce(total)
            return list(total.tolist())

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        """This rank's slice of the sum over ranks; what `whole` has elsewhere is of no use
        afterwards."""
        if self.world_size == 1:
            return whole
        self._require_joined()
        if self._device.type == "cpu":
            with self._together("reduce-scatter"):
                return add_up(whole, self.rank, self.world_size)
        part = torch.empty(whole.numel() // self.world_size, dtype=whole.dtype, device=whole.device)
        with self._together("reduce-scatter"):
            dist.reduce_scatter_tensor(part, whole)
        return part

    def all_gather(self, whole: Tensor) -> None:
        """Fill `whole`, in which this rank has made its slice, with every other rank's."""
        if self.world_size == 1:
            return
        self._require_joined()
        with self._together("all-gather"):
            if self._device.type == "cpu":
                spread(whole, self.rank, self.world_size)
            else:
                dist.all_gather_into_tensor(whole, whole.chunk(self.world_size)[self.rank])

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """What a backend raises for a dead peer gets a type here, and the rank remembers it.

        A GPU works behind its queue: what failed in it before is this rank's own and must be told
        before the collective, which in turn is over only when the queue is.
        """
        self._check_group()
        self._synchronise()
        try:
            yield
            self._synchronise()
        except OWN_FAILURES:
            raise
        except _peer_failures(self._device) as error:
            reason = str(error).partition("\n")[0]
            self._lost = f"rank {self.rank} lost another rank during {what}: {reason}"
            raise PeerLost(self._lost) from error

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _require_joined(self) -> None:
        if not self._joined:
            raise ValueError(
                f"a learner of {self.world_size} ranks must be joined before it updates; call"
                " join() on every rank"
            )


def _peer_failures(device: torch.device) -> type[RuntimeError]:
    """Gloo reports a dead peer as a plain RuntimeError of many wordings, NCCL as an error of
    torch.distributed's own."""
    return dist.DistError if device.type == "cuda" else RuntimeError


class ShardedAdamW:
    """fp32 masters and Adam moments of one rank's slice of the flat parameters."""

    def __init__(
        self, config: AdamWConfig, flat: FlatParameters, masters: Tensor, ranks: Ranks
    ) -> None:
        """`masters` are the initial fp32 values, whole; only the slice is kept."""
        self._config, self._flat, self._ranks = config, flat, ranks
        size = flat.values.numel() // ranks.world_size
        self.start, self.end = ranks.rank * size, (ranks.rank + 1) * size
        self.masters = masters[self.start : self.end].clone()
        self.mean, self.square = torch.zeros_like(self.masters), torch.zeros_like(self.masters)
        self.num_updates = 0

    def step(self, gradient: Tensor, rate: float) -> None:
        """AdamW on the slice's gradient, then every rank's values. Collective."""
        self.num_updates += 1
        for matrices in (True, False):
            pieces = [
                (start, end) for start, end, is_matrix in self._pieces() if is_matrix == matrices
            ]
            self._step_pieces(
                gradient, pieces, rate, self._config.weight_decay if matrices else 0.0
            )
        self.publish()

    def publish(self) -> None:
        """Round every rank's masters into the values that compute. Collective."""
        self._flat.values[self.start : self.end].copy_(self.masters)
        self._ranks.all_gather(self._flat.values)

    def _pieces(self) -> list[tuple[int, int, bool]]:
        """What of each parameter lies in the slice, relative to it, and whether it is a matrix."""
        cuts = [
            (max(slot.start, self.start), min(slot.end, self.end), len(slot.shape) > 1)
            for slot in self._flat.slots
        ]
        return [
            (start - self.start, end - self.start, is_matrix)
            for start, end, is_matrix in cuts
            if start < end
        ]

    def _step_pieces(
        self, gradient: Tensor, pieces: list[tuple[int, int]], rate: float, weight_decay: float
    ) -> None:
        def views(whole: Tensor) -> list[Tensor]:
            return [whole[start:end] for start, end in pieces]

        before = torch.tensor(float(self.num_updates - 1), device=self.masters.device)
        adamw(
            views(self.masters),
            views(gradient),
            views(self.mean),
            views(self.square),
            [],
            [before.clone() for _ in pieces],
            fused=True,
            amsgrad=False,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            lr=rate,
            weight_decay=weight_decay,
            eps=self._config.epsilon,
            maximize=False,
        )
