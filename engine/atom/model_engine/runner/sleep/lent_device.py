"""LentDevice: lend a device's memory to others while an engine sleeps, and take it back.

If the driver lets addresses outlive their memory, weights and cache are in pools (DevicePools), and
all users of their addresses stay valid. Otherwise storages are emptied, the cache is dropped, and
graphs must be captured again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from atom.model_engine.runner.sleep.device_pools import DevicePools
from atom.model_engine.runner.sleep.host_weights import HostMemory, HostWeights

logger = logging.getLogger(__name__)


class LentDevice:
    """Release and restore the device memory of some models and their cache."""

    def __init__(self, device: torch.device, weights_bytes: int) -> None:
        """Begin to allocate memory of the host for `weights_bytes` of weights."""
        self._pools = DevicePools.open(device)
        self._host_memory = HostMemory(weights_bytes)
        self._host_weights: HostWeights | None = None

    @property
    def keeps_addresses(self) -> bool:
        """Return whether restored tensors keep their addresses."""
        return self._pools is not None

    @property
    def graphs_id(self) -> tuple[int, int] | None:
        """Return torch's handle of the pool that graphs are captured in; None for a private
        pool."""
        return None if self._pools is None else self._pools.graphs_id

    @property
    def lent_bytes(self) -> int:
        """Return the bytes that torch counts as reserved, and that others have now."""
        return 0 if self._pools is None else self._pools.lent_bytes

    def wait(self) -> None:
        """Wait for the host's memory, which the first sleep would otherwise wait for; if there is
        too little, a sleep that needs it reports that."""
        try:
            self._host_memory.wait()
        except RuntimeError as error:
            logger.warning("no memory of the host for weights that sleep: %s", error)

    def take_weights(self, models: Sequence[nn.Module]) -> None:
        """Move models that have been loaded to where addresses last."""
        if self._pools is not None:
            self._pools.take_weights(models)

    @contextmanager
    def taking_cache(self) -> Iterator[list[torch.Tensor]]:
        """Return a context in which the cache is allocated; its tensors go into the list."""
        if self._pools is None:
            yield []
            return
        with self._pools.taking_cache() as tensors:
            yield tensors

    def forget(self) -> None:
        """Copy the weights at the next sleep, which are others now."""
        self._host_weights = None

    def give_back(self, models: Sequence[nn.Module], *, on_host: bool) -> None:
        """Release the memory of the weights, and of the cache if addresses are kept. on_host:
        whether the weights are kept in the host's memory."""
        if not on_host:
            self.forget()
        elif self._host_weights is None:
            self._host_weights = HostWeights(models, self._host_memory)
        if self._pools is not None:
            self._pools.give_back()
        elif self._host_weights is not None:
            self._host_weights.empty()

    def take_back_weights(self) -> bool:
        """Take the memory of the weights. Returns whether they are in it; after an error, such as
        too little memory, it may be called once more."""
        if self._pools is not None:
            self._pools.map_weights()
        if self._host_weights is None:
            return False
        self._host_weights.refill()
        return True

    def take_back_cache(self) -> None:
        """Take the memory of a cache that kept its addresses: zeros."""
        if self._pools is not None:
            torch.cuda.empty_cache()  # of the tensors that were read
            self._pools.map_cache()

    def end_pools(self) -> None:
        """Stop keeping addresses; the pools' tensors are used no longer."""
        if self._pools is not None:
            self._pools.give_back()
        self._pools = None
        self.forget()
