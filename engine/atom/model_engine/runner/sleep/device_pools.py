"""DevicePools: the memory of weights, cache and graphs on a device that its owner lends.

Tensors allocated here keep their addresses while the device's memory belongs to others, so captured
graphs remain valid when the memory returns. The caller restores the weights; the cache is zeroed;
graphs write the data that they read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from atom.model_engine.runner.sleep.host_weights import bytes_of, storages_of
from atom.utils.c_library import BuildError
from atom.utils.virtual_memory.pool import VirtualMemoryError, VirtualMemoryPool

logger = logging.getLogger(__name__)

# Storages that were moved leave their memory to torch, which gives it back when asked.
_EMPTY_EVERY_BYTES = 1 << 30


class DevicePools:
    """Own a pool for the weights, one for the cache and one for graphs, and the list of cache
    tensors."""

    def __init__(self, device: torch.device) -> None:
        """Raises `BuildError` or `VirtualMemoryError` where addresses cannot be kept."""
        self._weights, self._cache, self._graphs = (VirtualMemoryPool(device) for _ in range(3))
        self._cache_tensors: list[torch.Tensor] = []

    @classmethod
    def open(cls, device: torch.device) -> DevicePools | None:
        """Open the pools; return None, with a warning, if addresses cannot be kept."""
        try:
            return cls(device)
        except (BuildError, VirtualMemoryError) as error:
            logger.warning("graphs are captured again at every waking up: %s", error)
            return None

    def take_weights(self, models: Iterable[nn.Module]) -> None:
        """Move the storages of models here, one after the other; views of them stay valid."""
        moved = 0
        for storage in storages_of(models):
            content = bytes_of(storage).clone()
            storage.resize_(0)
            with self._weights.allocating():
                storage.resize_(len(content))
            bytes_of(storage).copy_(content)
            moved += len(content)
            del content
            if moved >= _EMPTY_EVERY_BYTES:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                moved = 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @contextmanager
    def taking_cache(self) -> Iterator[list[torch.Tensor]]:
        """Return a context in which the cache is allocated here; its tensors go into the list."""
        self._cache_tensors = []
        with self._cache.allocating():
            yield self._cache_tensors

    def give_back(self) -> None:
        """Release the device's memory, after its queued work."""
        for pool in (self._cache, self._graphs, self._weights):
            pool.unmap()

    @property
    def graphs_id(self) -> tuple[int, int]:
        """Return torch's handle of the pool that graphs are captured in."""
        return self._graphs.id

    @property
    def lent_bytes(self) -> int:
        """Return the bytes of the device's memory that others have now."""
        return sum(pool.unmapped_bytes for pool in (self._weights, self._cache, self._graphs))

    def map_weights(self) -> None:
        """Map memory for the weights, with undefined contents."""
        self._weights.map()

    def map_cache(self) -> None:
        """Map memory for the cache and the graphs, and zero the cache."""
        self._graphs.map()
        self._cache.map()
        for tensor in self._cache_tensors:
            tensor.zero_()
