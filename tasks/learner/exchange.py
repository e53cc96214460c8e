"""What gloo ranks do with slices of one flat buffer, by messages from rank to rank.

    add_up:  every other rank's piece of this rank's slice ──▶ buffer ──▶ added to the slice
    spread:  this rank's slice ──▶ every other rank, straight into its place

torch's own reduce-scatter for gloo copies the whole buffer, sums all of it on every rank and keeps
a slice: twice the traffic. Here a byte travels once and nothing large is allocated. Every sum is
made by one rank, its own values first and then the others' in their order, so it is the same bits
every time. Leaves out what is done when a rank dies (`Ranks`).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

_PIECE = 1 << 22  # elements of a message


def add_up(whole: Tensor, rank: int, world_size: int) -> Tensor:
    """This rank's slice of the sum over ranks, in place. Collective; the other slices keep what
    they have."""
    slices = whole.chunk(world_size)
    sends = [
        dist.isend(piece, peer, tag=index)
        for peer in _others(rank, world_size)
        for index, piece in enumerate(torch.split(slices[peer], _PIECE))
    ]
    for peer in _others(rank, world_size):
        _add_from(peer, slices[rank])
    _wait(sends)
    return slices[rank]


def spread(whole: Tensor, rank: int, world_size: int) -> None:
    """Fill the other ranks' slices of `whole` with what they have there. Collective."""
    slices = whole.chunk(world_size)
    messages = [dist.isend(slices[rank], peer) for peer in _others(rank, world_size)]
    messages += [dist.irecv(slices[peer], peer) for peer in _others(rank, world_size)]
    _wait(messages)


def _add_from(peer: int, own: Tensor) -> None:
    """Add the peer's pieces; while one is added, the next is under way."""
    pieces = torch.split(own, _PIECE)
    buffers = [torch.empty_like(pieces[0]) for _ in range(min(2, len(pieces)))]
    arriving = [buffers[index % 2][: len(piece)] for index, piece in enumerate(pieces)]
    message = dist.irecv(arriving[0], peer, tag=0)
    for index, piece in enumerate(pieces):
        _wait([message])
        if index + 1 < len(pieces):
            message = dist.irecv(arriving[index + 1], peer, tag=index + 1)
        piece.add_(arriving[index])


def _others(rank: int, world_size: int) -> list[int]:
    return [peer for peer in range(world_size) if peer != rank]


def _wait(messages: list[dist.Work | None]) -> None:
    for message in messages:
        assert message is not None, "every rank is in the group"
        message.wait()
