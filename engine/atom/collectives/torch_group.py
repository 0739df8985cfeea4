"""TorchGroup: a group over torch.distributed, by gloo on the CPU and by NCCL or RCCL on GPUs.

Ranks meet at a store: of one node on the loopback interface, of several on the first one's. On a
GPU calls are queued on the current stream, and may be captured into a graph.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # made in C++

from atom.utils.listening import listen_everywhere

LOOPBACK = "127.0.0.1"
# While weights are read, a rank may be far behind; the core's heartbeat detects one that hangs.
_PATIENCE = timedelta(days=1)


def open_store(size: int, *, for_other_nodes: bool = False) -> TCPStore:
    """Open rank 0's store where `size` ranks meet, on a free port (`store.port`)."""
    # A socket of ours, since the store's own would listen on every interface.
    listener = listen_everywhere(0) if for_other_nodes else socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK, port, size, is_master=True, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def find_store(port: int, size: int, host: str = LOOPBACK) -> TCPStore:
    """Connect to the store that another rank listens with."""
    return TCPStore(host, port, size, is_master=False)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank in its group. device: of the rank; entered [1] int64: counts the
    collectives that its host has begun, so that other ranks can see which rank is late; nodes:
    number of nodes with ranks of the group; on_one_machine: whether all these nodes are the same
    machine."""

    rank: int
    size: int
    device: torch.device
    entered: NDArray[np.int64]
    nodes: int = 1
    on_one_machine: bool = True


class TorchGroup:
    """The process's one group; it is left with `close`."""

    def __init__(self, place: Place, store: TCPStore) -> None:
        """Waits until every rank has come to the store."""
        self.rank, self.size = place.rank, place.size
        self.nodes = place.nodes
        self._entered = place.entered
        self._device = place.device
        is_gpu = place.device.type == "cuda"
        if place.on_one_machine:
            # gloo listens on the address of the host's name by default.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
        dist.init_process_group(
            "nccl" if is_gpu else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.size,
            timeout=_PATIENCE,
            device_id=place.device if is_gpu else None,
        )

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.enter()
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        return None

    def takes_parts(self, residual: torch.Tensor) -> bool:
        return False

    def enter(self) -> None:
        self._entered[0] += 1

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self.enter()
        rows, columns = x.shape
        everyone = x.new_empty(self.size * rows, columns)
        dist.all_gather_into_tensor(everyone, x.contiguous())
        by_rank = everyone.view(self.size, rows, columns)
        return by_rank.transpose(0, 1).reshape(rows, self.size * columns)

    def barrier(self) -> None:
        self.enter()
        dist.barrier()

    # ---- ExpertLinks --------------------------------------------------------------------------

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        self._entered[0] += 1
        everyone = x.new_empty(self.size * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(everyone, x.contiguous())
        return everyone

    def scatter_sums(self, x: torch.Tensor) -> torch.Tensor:
        self._entered[0] += 1
        own = x.new_empty(x.shape[0] // self.size, x.shape[1])
        dist.reduce_scatter_tensor(own, x.contiguous())
        return own

    def sum_counts(self, counts: torch.Tensor) -> torch.Tensor:
        self._entered[0] += 1
        dist.all_reduce(counts)
        return counts

    def exchange_counts(self, counts: Sequence[int]) -> list[int]:
        self._entered[0] += 1
        sent = torch.tensor(counts, dtype=torch.int64, device=self._device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        numbers: list[int] = received.tolist()
        return numbers

    def exchange(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        self._entered[0] += 1
        rows = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(rows, x.contiguous(), list(received), list(sent))
        return rows

    def close(self) -> None:
        dist.destroy_process_group()


def _loopback_interface() -> str:
    """Find the loopback interface's name: lo on Linux, lo0 elsewhere."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
