"""Transfer sampled tokens and log-probabilities from the device to the host.

Tokens go through a ring of pinned buffers, made once: allocating pinned memory per step would cost
more than a small step itself. A buffer is reused only after its step was collected (the pipeline
has at most one step besides the running one).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.wire.logprob_rows import LogprobRows
from atom.model_engine.wire.pooled_rows import PooledRows
from atom.model_ops.sampling.logprobs import LogprobTensors
from atom.utils.device import Device

_RING = 3


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens on their way to the host. token_ids [R] int32 on the host, valid once `copied` has
    happened (None: already)."""

    token_ids: torch.Tensor
    copied: torch.cuda.Event | None

    def wait(self) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """Return the tokens, and None: each row got one."""
        if self.copied is not None:
            self.copied.synchronize()
        tokens: NDArray[np.int32] = self.token_ids.numpy()
        return tokens.copy(), None


@dataclass(frozen=True, slots=True)
class PendingRuns:
    """Hold the tokens of rows that carried drafts, int32 on the host, valid once `copied` has
    happened (None: already): drawn [T], one after each input token; counts, drafted [R], the number
    of tokens that a row got and of drafts that it had. row, offset [T] int64: of the draws, as in
    VerifyRows."""

    drawn: torch.Tensor
    counts: torch.Tensor
    drafted: torch.Tensor
    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    copied: torch.cuda.Event | None

    def wait(self) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """Return the tokens, row after row, and how many each row got."""
        if self.copied is not None:
            self.copied.synchronize()
        counts: NDArray[np.int32] = self.counts.numpy().copy()
        drawn: NDArray[np.int32] = self.drawn.numpy()
        return drawn[self.offset < counts[self.row]], counts


class HostTokens:
    def __init__(self, max_rows: int, device: Device) -> None:
        count = _RING if device.is_gpu else 0
        self._buffers = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=True) for _ in range(count)
        ]
        self._events = [torch.cuda.Event() for _ in range(count)]
        self._next = 0

    def next(self) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Return a buffer to copy into, and the event to record after the copy."""
        index = self._next
        self._next = (index + 1) % len(self._buffers)
        return self._buffers[index], self._events[index]


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities on their way to the host. tensors: on the host, valid once `copied` has
    happened (None: already); request_ids: int64 of its rows."""

    request_ids: NDArray[np.int64]
    tensors: LogprobTensors
    copied: torch.cuda.Event | None

    @staticmethod
    def send(request_ids: NDArray[np.int64], tensors: LogprobTensors) -> PendingLogprobs:
        """Start the copy, after the kernels that compute the tensors. Few requests ask: each gets
        new buffers."""
        if not tensors.ranks.is_cuda:
            return PendingLogprobs(request_ids, tensors, None)
        on_host = LogprobTensors(
            _to_pinned(tensors.token_ids), _to_pinned(tensors.logprobs), _to_pinned(tensors.ranks)
        )
        copied = torch.cuda.Event()
        copied.record()
        return PendingLogprobs(request_ids, on_host, copied)

    def wait(self) -> LogprobRows:
        if self.copied is not None:
            self.copied.synchronize()
        return LogprobRows(
            self.request_ids,
            self.tensors.token_ids.numpy(),
            self.tensors.logprobs.numpy(),
            self.tensors.ranks.numpy(),
        )


@dataclass(frozen=True, slots=True)
class PendingVectors:
    """Vectors on their way to the host. vectors [R, size] float32 on the host, valid once `copied`
    has happened (None: already)."""

    request_ids: NDArray[np.int64]
    vectors: torch.Tensor
    copied: torch.cuda.Event | None

    @staticmethod
    def send(request_ids: NDArray[np.int64], vectors: torch.Tensor) -> PendingVectors:
        """Start the copy, after the kernels that compute the vectors."""
        if not vectors.is_cuda:
            return PendingVectors(request_ids, vectors, None)
        on_host, copied = _to_pinned(vectors), torch.cuda.Event()
        copied.record()
        return PendingVectors(request_ids, on_host, copied)

    def wait(self) -> PooledRows:
        if self.copied is not None:
            self.copied.synchronize()
        return PooledRows(self.request_ids, self.vectors.numpy())


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
