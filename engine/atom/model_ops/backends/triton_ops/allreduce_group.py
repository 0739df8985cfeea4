"""Ranks that add up few rows in the norm's kernel, over memory that they see of each other.

Everything else, and sums of many rows, stays the group's.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from atom.collectives.group import Group
from atom.collectives.peer_buffers import (
    Handle,
    PeerBuffers,
    new_buffer,
    open_buffers,
    reasons_against_peers,
    share,
)
from atom.model_ops.backends.triton_ops.allreduce_norm import allreduce_norm
from atom.model_ops.values import NormWeight

logger = logging.getLogger(__name__)


def join(group: Group, device: torch.device, row_bytes: int) -> Group:
    """Join the ranks by this kernel, or give the group itself back, with a reason in the log.
    Every rank makes this call."""
    reasons = _reasons_of_all(group, device)
    if reasons:
        logger.info("backend triton: sums over ranks are torch.distributed's: %s", reasons[0])
        return group
    buffer = new_buffer(device, group.size, row_bytes)
    handles: list[Handle | None] = [None] * group.size
    dist.all_gather_object(handles, share(buffer))
    joined = PeerGroup(group, open_buffers(buffer, handles, group.rank))
    group.barrier()
    return joined


def _reasons_of_all(group: Group, device: torch.device) -> list[str]:
    if group.nodes > 1:
        return ["they are on several nodes"]
    everyone: list[tuple[str, ...]] = [()] * group.size
    dist.all_gather_object(everyone, reasons_against_peers(device, group.size))
    return [f"rank {rank}: {why}" for rank, reasons in enumerate(everyone) for why in reasons]


class PeerGroup:
    """See Group."""

    def __init__(self, group: Group, peers: PeerBuffers) -> None:
        self._group = group
        self._peers: PeerBuffers | None = peers
        self._rows, self._row_bytes = peers.rows, peers.row_bytes
        self.rank, self.size, self.nodes = group.rank, group.size, group.nodes

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.takes_parts(residual):
            return None
        assert self._peers is not None, "the group was left"
        self.enter()
        return allreduce_norm(x, residual, NormWeight(weight, eps), self._peers), residual

    def takes_parts(self, residual: torch.Tensor) -> bool:
        row_bytes = residual.shape[-1] * residual.element_size()
        return len(residual) <= self._rows and row_bytes == self._row_bytes

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.reduce(x)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.gather(x)

    def enter(self) -> None:
        self._group.enter()

    def barrier(self) -> None:
        self._group.barrier()

    def close(self) -> None:
        """Leave the group in three steps that all ranks take together: memory that another process
        has opened must not be freed or written before that process has closed it (CUDA's rule for
        IPC handles; a process that ends frees its memory)."""
        peers, self._peers = self._peers, None
        assert peers is not None, "the group was left"
        self._group.barrier()  # no rank's kernels write any more
        own = peers.own
        del peers
        self._group.barrier()  # no rank has another's open any more
        del own
        self._group.close()
