"""A norm that sums over ranks gives each of them what the norm of the sum is.

Two processes: on two GPUs over IPC handles, as in an engine; in the interpreter over memory that
they share. The rows of each sum differ, so that a row's places are taken in turns of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from atom.collectives import peer_buffers
from atom.collectives.peer_buffers import PeerBuffers
from atom.model_ops.backends.backend import Backend
from atom.model_ops.values import NormWeight, Pending, Stream

RANKS = 2
ROWS = (3, 1, 4, 4, 2, 1, 4)  # of one sum after the other
PARTS = (1, 3)  # whole shares, then such as come in parts: one after the other in the same memory
_HANG_SECONDS = 300.0

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() == 1, reason="one GPU: there is no other's memory to write"
)


def draws(hidden: int, dtype: torch.dtype, parts: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Residual and every rank's share of each sum, [ranks, rows, H] or [ranks, parts, rows, H]."""
    draw = torch.Generator().manual_seed(hidden)
    shape = (RANKS, parts) if parts > 1 else (RANKS,)
    kind = torch.float32 if parts > 1 else dtype
    return [
        (
            torch.randn(rows, hidden, generator=draw).to(dtype),
            torch.randn(*shape, rows, hidden, generator=draw).to(kind),
        )
        for rows in ROWS
    ]


def take_part(peers: PeerBuffers, dtype: torch.dtype) -> list[torch.Tensor]:
    """One rank's results of all sums, on the CPU."""
    from atom.model_ops.backends.triton_ops.allreduce_norm import allreduce_norm

    device, hidden = peers.own.device, peers.row_bytes // dtype.itemsize
    norm = NormWeight(torch.linspace(0.5, 1.5, hidden, device=device).to(dtype), 1e-6)
    results = []
    for parts in PARTS:
        for residual, shares in draws(hidden, dtype, parts):
            total = residual.to(device)
            normed = allreduce_norm(shares[peers.rank].to(device), total, norm, peers)
            results += [normed.cpu(), total.cpu()]
    return results


def as_bytes(results: list[torch.Tensor]) -> list[bytes]:
    """What a pipe carries itself: tensors would be shared through a socket below TMPDIR, whose path
    may be too long for one."""
    return [result.contiguous().view(torch.uint8).numpy().tobytes() for result in results]


def other_rank(pipe: Any, shared: Any, hidden: int, dtype: torch.dtype) -> None:
    """Rank 1, in a process of its own. shared: both buffers, in the interpreter."""
    if shared is None:
        own = peer_buffers.new_buffer(torch.device("cuda", 1), RANKS, hidden * dtype.itemsize)
        pipe.send(peer_buffers.share(own))
        peers = peer_buffers.open_buffers(own, [pipe.recv(), None], 1)
    else:
        peers = beside(shared, 1)
    pipe.send(as_bytes(take_part(peers, dtype)))
    pipe.recv()  # the buffer stays until the other has read its own


def beside(buffers: list[torch.Tensor], rank: int) -> PeerBuffers:
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers])
    sums = torch.zeros(buffers[rank].shape[2], dtype=torch.int32)
    return PeerBuffers(rank, buffers[rank], addresses, sums)


def check(found: list[torch.Tensor], reference: Backend, hidden: int, dtype: torch.dtype) -> None:
    norm = NormWeight(torch.linspace(0.5, 1.5, hidden).to(dtype), 1e-6)
    results = iter(found)
    for parts in PARTS:
        for residual, shares in draws(hidden, dtype, parts):
            each = shares.sum(1).to(dtype) if parts > 1 else shares
            total = each.float().sum(0).to(dtype)
            stream = Stream(residual, total, Pending.WHOLE)
            expected, after = reference.operations["norm"](stream, norm)
            slack = (1e-5, 1e-5) if dtype is torch.float32 else (0.04, 0.01)
            close = dict(zip(("atol", "rtol"), slack, strict=True))
            torch.testing.assert_close(next(results), expected, **close)
            torch.testing.assert_close(next(results), after.residual, **close)


@pytest.mark.parametrize(
    ("hidden", "dtype"),
    [(96, torch.float32), pytest.param(4096, torch.bfloat16, marks=pytest.mark.gpu)],
)
def test_ranks_norm_the_sum(
    backend: Backend, reference: Backend, hidden: int, dtype: torch.dtype
) -> None:
    assert backend.name == "triton"
    on_gpu = torch.cuda.is_available()
    # A card's context is no child's; without one, a copy has imported what it interprets.
    processes = mp.get_context("spawn" if on_gpu else "fork")
    ours, theirs = processes.Pipe()
    words = hidden * dtype.itemsize // 4
    shared = None
    if not on_gpu:
        shape = (peer_buffers.PLACES, RANKS, max(ROWS), words)
        shared = [torch.zeros(shape, dtype=torch.int64).share_memory_() for _ in range(RANKS)]
    other = processes.Process(target=other_rank, args=(theirs, shared, hidden, dtype))
    other.start()
    if shared is None:
        own = peer_buffers.new_buffer(torch.device("cuda", 0), RANKS, hidden * dtype.itemsize)
        handle = ours.recv()
        ours.send(peer_buffers.share(own))
        peers = peer_buffers.open_buffers(own, [None, handle], 0)
    else:
        peers = beside(shared, 0)
    found = take_part(peers, dtype)
    assert ours.poll(_HANG_SECONDS), "the other rank has ended, or waits"
    assert as_bytes(found) == ours.recv()
    ours.send("done")
    other.join(_HANG_SECONDS)
    assert other.exitcode == 0
    check(found, reference, hidden, dtype)
