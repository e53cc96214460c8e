"""The ranks of a learner as a group: how they join, and their collectives; the same code on gloo
and NCCL. A single rank works without torch.distributed.

    add_up:  every other rank's piece of this rank's slice ──▶ buffer ──▶ added to the slice
    spread:  this rank's slice ──▶ every other rank, straight into its place

torch's own reduce-scatter for gloo sums all of the buffer on every rank: twice the traffic. Here a
byte travels once, and nothing large is allocated. The others' values are added in rank order, so
that the result is the same bit by bit every time.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed.distributed_c10d import _set_pg_timeout

from tasks.cluster.ports import free_port, is_loopback

ANSWERS_WITHIN = timedelta(seconds=60)  # in which every rank comes to a collective
_PIECE = 1 << 22  # elements of a message


def add_up(whole: Tensor, group: dist.ProcessGroup, deadline: timedelta) -> Tensor:
    """Sum this rank's slice over the group's ranks, in place, and return it. The deadline is that
    of each message. Collective."""
    slices = whole.chunk(group.size())
    own = slices[group.rank()]
    sends = [
        dist.isend(piece, group=group, group_dst=peer, tag=index)
        for peer in _others(group)
        for index, piece in enumerate(torch.split(slices[peer], _PIECE))
    ]
    for peer in _others(group):
        _add_from(peer, own, group, deadline)
    _wait(sends, deadline)
    return own


def spread(whole: Tensor, group: dist.ProcessGroup, deadline: timedelta) -> None:
    """Fill the other ranks' slices of `whole` with those ranks' values. Likewise. Collective."""
    slices = whole.chunk(group.size())
    own, others = slices[group.rank()], _others(group)
    messages = [dist.isend(own, group=group, group_dst=peer) for peer in others]
    messages += [dist.irecv(slices[peer], group=group, group_src=peer) for peer in others]
    _wait(messages, deadline)


def _add_from(peer: int, own: Tensor, group: dist.ProcessGroup, deadline: timedelta) -> None:
    """Receive the peer's pieces and add them; while one is added, the next is being received."""
    pieces = torch.split(own, _PIECE)
    buffers = [torch.empty_like(pieces[0]) for _ in range(min(2, len(pieces)))]
    arriving = [buffers[index % 2][: len(piece)] for index, piece in enumerate(pieces)]
    message = dist.irecv(arriving[0], group=group, group_src=peer, tag=0)
    for index, piece in enumerate(pieces):
        _wait([message], deadline)
        if index + 1 < len(pieces):
            message = dist.irecv(arriving[index + 1], group=group, group_src=peer, tag=index + 1)
        piece.add_(arriving[index])


def _others(group: dist.ProcessGroup) -> list[int]:
    return [peer for peer in range(group.size()) if peer != group.rank()]


def _wait(messages: list[dist.Work | None], deadline: timedelta) -> None:
    for message in messages:
        assert message is not None, "every rank is in the group"
        message.wait(deadline)


FILE = "file://"
OWN_FAILURES = (torch.OutOfMemoryError, torch.AcceleratorError)  # never caused by a peer


class PeerLost(RuntimeError):
    """Another rank died or did not answer in a collective; the group is unusable from then on."""


class Ranks:
    """This rank's view of the learner's ranks, and their collectives; nothing for one rank."""

    def __init__(
        self, rank: int, world_size: int, device: torch.device, per_machine: int = 0
    ) -> None:
        """per_machine: consecutive ranks on each machine; 0 for all on one."""
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank must lie in 0..{world_size - 1}, got {rank}; number the learner's devices"
                " from 0"
            )
        self.rank, self.world_size, self.device = rank, world_size, device
        self._group: dist.ProcessGroup | None = None  # once joined
        self._whole = self  # the ranks that these are a part of
        self._per_machine = per_machine or world_size
        # parts: the ranks of this machine, and those with this rank's place in every machine; what
        # a part loses is lost for all
        self.near = self
        self.across = self if world_size == 1 else Ranks(0, 1, device)
        self._joining = self._deadline = ANSWERS_WITHIN  # deadlines of joining, of a collective
        self._lost: str | None = None  # what broke the group

    def join(self, meeting_point: str, deadline_s: float) -> None:
        """Enter the group, within the deadline. A process is in one group at a time: that of
        earlier ranks, which lost their peers, is left here."""
        if self.world_size == 1:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        self._joining = timedelta(seconds=deadline_s)
        with self._together("join"):
            dist.init_process_group(
                backend,
                store=_store(meeting_point, self.rank, self.world_size, self._joining),
                rank=self.rank,
                world_size=self.world_size,
                timeout=self._joining,
            )
            self._group = dist.group.WORLD
            if self._per_machine < self.world_size:
                places = torch.arange(self.world_size).view(-1, self._per_machine)
                self.near = self._part(places.tolist())
                self.across = self._part(places.T.tolist())
        self._answer_within(min(ANSWERS_WITHIN, self._joining))

    def _part(self, divided: list[list[int]]) -> Ranks:
        (own,) = (each for each in divided if self.rank in each)
        made = Ranks(own.index(self.rank), len(own), self.device)
        groups = [dist.new_group(each, timeout=self._joining) for each in divided]
        made._group, made._whole = groups[divided.index(own)], self
        return made

    @property
    def group(self) -> dist.ProcessGroup:
        """torch's group of these ranks. Raises ValueError before they have joined."""
        self._require_joined()
        assert self._group is not None
        return self._group

    @contextmanager
    def patient(self) -> Iterator[None]:
        """In the block a collective has the deadline of joining, because other ranks may load a
        model, or write a checkpoint, before they come to it. Elsewhere a rank that has not come
        after ANSWERS_WITHIN counts as lost; on GPUs NCCL then ends the processes that waited."""
        self._answer_within(self._joining)
        try:
            yield
        finally:
            self._answer_within(min(ANSWERS_WITHIN, self._joining))

    def _answer_within(self, deadline: timedelta) -> None:
        for ranks in {self, self.near, self.across}:
            ranks._deadline = deadline
            if ranks._group is not None and dist.is_initialized():
                _set_pg_timeout(deadline, ranks._group)

    def check(self) -> None:
        """Raise PeerLost when the group is broken or was never entered. Does not wait."""
        self._check_group()
        if self.world_size > 1 and self._group is None:
            raise PeerLost(f"rank {self.rank} of {self.world_size} is in no group with the others")

    def _check_group(self) -> None:
        if self._whole._lost is not None:
            raise PeerLost(self._whole._lost)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group()
        self._group = None

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns each value summed over the ranks, in fp64. Collective."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        self._require_joined()
        with self._together("sum"):
            dist.all_reduce(total, group=self._group)
            return list(total.tolist())

    def most(self, value: int) -> int:
        """Returns the largest value of all ranks. Collective."""
        if self.world_size == 1:
            return value
        largest = torch.tensor(value, dtype=torch.int64, device=self.device)
        self._require_joined()
        with self._together("most"):
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
            return int(largest)

    def reduce_scatter(self, whole: Tensor, queued: bool = False) -> Tensor:
        """Returns this rank's slice of the sum over ranks; the rest of `whole` must not be used
        afterwards. `queued` as for `_together`. Collective."""
        if self.world_size == 1:
            return whole
        self._require_joined()
        with self._together("reduce-scatter", queued):
            if self.device.type == "cpu":
                return add_up(whole, self.group, self._deadline)
            own = torch.empty_like(whole.chunk(self.world_size)[self.rank])
            dist.reduce_scatter_tensor(own, whole, group=self._group)
            return own

    def all_gather(self, whole: Tensor, queued: bool = False) -> None:
        """Fill `whole`, of which this rank has written its own slice, with every other rank's
        slice. `queued` as for `_together`. Collective."""
        if self.world_size == 1:
            return
        self._require_joined()
        with self._together("all-gather", queued):
            if self.device.type == "cpu":
                spread(whole, self.group, self._deadline)
            else:
                own = whole.chunk(self.world_size)[self.rank]
                dist.all_gather_into_tensor(whole, own, group=self._group)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Fill `tensor` with that of the rank `source`. Collective."""
        if self.world_size == 1:
            return
        self._require_joined()
        with self._together("broadcast"):
            dist.broadcast(tensor, group=self._group, group_src=source)

    def exchange(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """Send to each rank so many of the rows, in order of ranks, and return those that the
        others send to this one, likewise. Waits for no queue. Collective."""
        if self.world_size == 1:
            return rows
        self._require_joined()
        arrived = rows.new_empty(sum(receives), *rows.shape[1:])
        with self._together("exchange", queued=True):
            dist.all_to_all_single(arrived, rows, [*receives], [*sends], group=self._group)
        return arrived

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Marks work in which every rank makes the same collectives in the same order. A rank that
        fails inside leaves the others in a collective, which this rank's next one must not meet: so
        it counts its group as broken. The others notice when its process ends."""
        try:
            yield
        except BaseException as error:
            if self._lost is None:
                self._lost = f"rank {self.rank} failed between collectives: {error!r}"
            raise

    @contextmanager
    def _together(self, what: str, queued: bool = False) -> Iterator[None]:
        """Turn a backend's error for a dead peer into PeerLost, and remember that the group is
        broken. A GPU works behind a queue: earlier failures in it are this rank's own and must be
        raised before the collective, which is over only when the queue is empty. A `queued`
        collective waits for neither; its failure is raised by the next one that is not queued."""
        self._check_group()
        # gloo raises a plain RuntimeError of many wordings for a dead peer
        failures = dist.DistError if self.device.type == "cuda" else RuntimeError
        if not queued:
            self._synchronise()
        try:
            yield
            if not queued:
                self._synchronise()
        except OWN_FAILURES:
            raise
        except failures as error:
            reason = str(error).partition("\n")[0]
            whole = self._whole
            whole._lost = f"rank {whole.rank} lost another rank during {what}: {reason}"
            raise PeerLost(whole._lost) from error

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _require_joined(self) -> None:
        if self._group is None:
            raise ValueError(
                f"a learner of {self.world_size} ranks must be joined before it updates; call"
                " join() on every rank"
            )


def meeting_point(host: str, folder: str | None) -> str:
    """The address where the ranks find each other, given rank 0's host. On the loopback, a file in
    a new directory that only this user may open; else a free port of the host."""
    if is_loopback(host):
        return f"{FILE}{tempfile.mkdtemp(prefix='ranks-', dir=folder)}/store"
    return f"tcp://{f'[{host}]' if ':' in host else host}:{free_port(host)}"


def _store(meeting_point: str, rank: int, world_size: int, deadline: timedelta) -> Store:
    """The store that torch's `init_method` would make, but listening on the named address only."""
    if meeting_point.startswith(FILE):
        file = FileStore(meeting_point.removeprefix(FILE), world_size)
        file.set_timeout(deadline)
        return file
    where = urlsplit(meeting_point)
    host, port = where.hostname or "", where.port or 0
    listening: int | None = None  # a descriptor; torch's own would listen on every address
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family).detach()
    return TCPStore(
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=deadline,
        wait_for_workers=False,
        master_listen_fd=listening,
    )
