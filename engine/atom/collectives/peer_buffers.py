"""PeerBuffers: memory of each rank that the other ranks' kernels write, for sums of few rows.

A kernel writes its share of a row into every rank's buffer and reads the others' shares from its
own. Each 64-bit word carries 32 bits of data and the number of the sum, so a word shows whether it
has arrived: no flag, no fence and no barrier is needed. A row has two places, which sums use in
turn: a rank that has all shares of one sum knows that the others have finished the previous sum.

Buffers are opened through IPC handles, which exist for cards of one node that can access each
other's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from atom.sizing.overheads import rows_of_a_sum

# How another process of this node opens a buffer.
Handle = tuple[Any, ...]

PLACES = 2
_DATA_BYTES = 4  # of each word of eight
# The index of the device among the arguments of rebuild_cuda_tensor.
_DEVICE = 6


@dataclass(frozen=True, slots=True)
class PeerBuffers:
    """A rank's exchange buffer and the addresses of the other ranks' buffers. own [2, ranks, rows,
    words] int64: the data that the ranks have sent; addresses [ranks] int64: the address of each
    rank's `own`; sums [rows] int32: the number of sums that each row was part of; opened: the other
    ranks' buffers, referenced so that they stay mapped."""

    rank: int
    own: torch.Tensor
    addresses: torch.Tensor
    sums: torch.Tensor
    opened: tuple[torch.Tensor, ...] = ()

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return self.own.shape[1]

    @property
    def rows(self) -> int:
        """Return the most rows of a sum."""
        return self.own.shape[2]

    @property
    def words(self) -> int:
        """Count the int64 words of a row."""
        return self.own.shape[3]

    @property
    def row_bytes(self) -> int:
        """Count the bytes of a row's numbers."""
        return self.words * _DATA_BYTES


def reasons_against_peers(device: torch.device, size: int) -> tuple[str, ...]:
    """Return the reasons why kernels of `size` ranks, on the first so many devices, cannot write
    each other's memory; empty if they can."""
    if device.type != "cuda":
        return ("they are on the CPU",)
    if torch.version.hip:
        return (
            "ordinary memory of this vendor's cards is cached, and shows writes of others late",
        )
    others = [index for index in range(size) if index != device.index]
    hidden = [i for i in others if not torch.cuda.can_device_access_peer(device.index, i)]
    return tuple(f"device {device.index} sees no memory of device {other}" for other in hidden)


def new_buffer(device: torch.device, size: int, row_bytes: int) -> torch.Tensor:
    """Allocate a rank's buffer, for rows of so many bytes. The library sums larger numbers of rows,
    for which its bandwidth matters more than its latency."""
    words = -(-row_bytes // _DATA_BYTES)
    rows = rows_of_a_sum(row_bytes, size)
    return torch.zeros((PLACES, size, rows, words), dtype=torch.int64, device=device)


def share(own: torch.Tensor) -> Handle:
    """Return the IPC handle with which another process of this node opens the buffer."""
    _, arguments = reduce_tensor(own)  # type: ignore[no-untyped-call]
    return tuple(arguments)


def open_buffers(own: torch.Tensor, handles: Sequence[Handle | None], rank: int) -> PeerBuffers:
    """Open the buffers of all ranks from their handles."""
    opened = {
        other: _open(handle, own.device)
        for other, handle in enumerate(handles)
        if other != rank and handle is not None
    }
    addresses = [own if other == rank else opened[other] for other in range(len(handles))]
    return PeerBuffers(
        rank=rank,
        own=own,
        addresses=torch.tensor([buffer.data_ptr() for buffer in addresses], device=own.device),
        sums=torch.zeros(own.shape[2], dtype=torch.int32, device=own.device),
        opened=tuple(opened.values()),
    )


def _open(handle: Handle, device: torch.device) -> torch.Tensor:
    """Map another device's memory into this process, as a tensor."""
    arguments = [*handle[:_DEVICE], device.index, *handle[_DEVICE + 1 :]]
    buffer: torch.Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
    return buffer
