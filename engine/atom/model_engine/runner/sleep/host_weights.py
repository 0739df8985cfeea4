"""HostWeights: a model's weights in the host's memory while the device's memory serves others.

Storages are emptied and refilled, so views of them stay valid; in a pool whose memory can be
released, they keep their addresses, too. The copies are kept after the weights have returned:
weights do not change, so the next sleep copies none. Pinning memory takes longer than copying, so
it begins on a separate thread while the model is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn

# A power of two, as torch's allocator of pinned memory rounds up to.
_SLAB_BYTES = 256 << 20


class HostMemory:
    """Pinned memory of the host, in slabs."""

    def __init__(self, nbytes: int) -> None:
        """Begin to allocate `nbytes` bytes; more are allocated on demand."""
        self._slabs: list[torch.Tensor] = []
        thread = ThreadPoolExecutor(1, "pin-host-memory")
        self._ready: Future[None] = thread.submit(self._take, nbytes)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the memory. Raises torch's error if there is too little."""
        self._ready.result()

    def pieces(self, first: int, nbytes: int) -> Iterator[torch.Tensor]:
        """Yield the bytes from `first` on, in as few pieces as possible."""
        self._take(first + nbytes)
        while nbytes:
            slab, start = divmod(first, _SLAB_BYTES)
            piece = self._slabs[slab][start : start + nbytes]
            yield piece
            first, nbytes = first + len(piece), nbytes - len(piece)

    def _take(self, nbytes: int) -> None:
        pinned = torch.cuda.is_available()
        while len(self._slabs) * _SLAB_BYTES < nbytes:
            self._slabs.append(torch.empty(_SLAB_BYTES, dtype=torch.uint8, pin_memory=pinned))


class HostWeights:
    """Hold copies of the parameters and buffers of some models, one per storage."""

    def __init__(self, models: Iterable[nn.Module], memory: HostMemory) -> None:
        """Copy; the models keep theirs."""
        memory.wait()
        self._copies: list[tuple[torch.UntypedStorage, list[torch.Tensor]]] = []
        self.nbytes = 0
        for storage in storages_of(models):
            pieces = list(memory.pieces(self.nbytes, storage.nbytes()))
            self._copies.append((storage, pieces))
            self.nbytes += storage.nbytes()
            for own, piece in _beside(storage, pieces):
                piece.copy_(own, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def empty(self) -> None:
        """Free the device's memory: storages have none until `refill`."""
        for storage, _ in self._copies:
            storage.resize_(0)

    def refill(self) -> None:
        """Fill the storages again; after an error, such as too little memory, it may be called once
        more."""
        for storage, pieces in self._copies:
            if not storage.nbytes():
                storage.resize_(sum(map(len, pieces)))
            for own, piece in _beside(storage, pieces):
                own.copy_(piece, non_blocking=True)


def storages_of(models: Iterable[nn.Module]) -> list[torch.UntypedStorage]:
    """List the storages of all parameters and buffers that have any bytes."""
    found = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for model in models
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.untyped_storage().nbytes()
    }
    return list(found.values())


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """View a storage as its bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _beside(
    storage: torch.UntypedStorage, pieces: list[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(torch.split(bytes_of(storage), [*map(len, pieces)]), pieces, strict=True)
