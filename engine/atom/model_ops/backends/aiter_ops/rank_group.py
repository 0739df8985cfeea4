"""Ranks that sum with AITER's kernel over their peers' memory, followed by the norm.

The underlying group computes the sums that this kernel does not support (other group sizes, dtypes
and forms), and all other collectives. A graph can be captured unchanged: outside of AITER's own
context for captures, inputs are copied to memory that peers have opened already. So no graph's
memory must be shared, and a released graph leaves no stale address.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from atom.collectives.group import Group
from atom.model_ops.backends.aiter_ops.library import Library

logger = logging.getLogger(__name__)

# Ranks that the sum is for; with a norm there is none for 6.
_SIZES, _NORM_SIZES = (2, 4, 6, 8), (2, 4, 8)
# Of one sum; AITER keeps two such buffers, of the input and of intermediate results.
_ROOM_BYTES = 64 * 2**20
_WIDEST_NORM = 16384
# Up to here every rank adds up everything by itself.
_ONE_STAGE_BYTES = 128 * 2**10
_DTYPES = (torch.bfloat16, torch.float16)


def join(library: Library, group: Group, device: torch.device, row_bytes: int) -> Group:
    """Join the ranks by AITER's kernels, or give the group itself back, with a reason in the log.
    Every rank makes this call."""
    reasons = library.reasons_without("CustomAllreduce")
    if group.size not in _SIZES:
        reasons += (f"adds up over {', '.join(map(str, _SIZES))} ranks, not {group.size}",)
    if group.nodes > 1:
        reasons += ("reaches no memory of another node",)
    if reasons:
        logger.info("backend aiter: sums over ranks are torch.distributed's: %s", reasons[0])
        return group
    joined = _AiterGroup(library, group, device)
    if joined.is_refused:
        logger.info("backend aiter: sums over ranks are torch.distributed's: aiter has no way here")
        return group
    return joined


class _AiterGroup:
    """See Group."""

    def __init__(self, library: Library, group: Group, device: torch.device) -> None:
        self._group = group
        self.rank, self.size, self.nodes = group.rank, group.size, group.nodes
        # Addresses are exchanged by the hosts.
        hosts = dist.new_group(backend="gloo")
        self._peers = library.found["CustomAllreduce"](
            group=hosts, device=device, max_size=2 * _ROOM_BYTES
        )

    @property
    def is_refused(self) -> bool:
        return bool(self._peers.disabled)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        if not _fits(x):
            return self._group.reduce(x)
        self.enter()
        total: torch.Tensor = self._peers.custom_all_reduce(
            input=x, use_new=True, open_fp8_quant=False
        )
        return total

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        alike = x.dtype is residual.dtype is weight.dtype and residual.is_contiguous()
        if not alike or not _fits(x):
            return None
        if self.size not in _NORM_SIZES or x.shape[1] > _WIDEST_NORM:
            return None
        self.enter()
        normed, total = self._peers.custom_fused_ar_rms(
            input=x,
            residual_inp=residual,
            weight=weight,
            eps=eps,
            use_1stage=x.nbytes <= _ONE_STAGE_BYTES,
        )
        return normed, total

    def takes_parts(self, residual: torch.Tensor) -> bool:
        return False

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.gather(x)

    def enter(self) -> None:
        self._group.enter()

    def barrier(self) -> None:
        self._group.barrier()

    def close(self) -> None:
        """Leave together: no rank frees what another's kernels still write."""
        self._group.barrier()
        del self._peers
        self._group.barrier()
        self._group.close()


def _fits(x: torch.Tensor) -> bool:
    """Return whether the kernel takes x. Every rank must agree, so only shape and dtype decide."""
    whole = x.is_contiguous() and x.nbytes > 0 and x.nbytes % 16 == 0
    return whole and x.dtype in _DTYPES and x.nbytes < _ROOM_BYTES
