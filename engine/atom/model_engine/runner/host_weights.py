"""HostWeights: a model's weights in the host's memory while the device's belongs to others.

Storages are emptied and filled again, so that whatever is a view of one stays so. The copies are
kept when the weights are back: weights do not change, so the next time nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class HostWeights:
    """Copies of the parameters and buffers of some models, those of one storage once."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        """Copy; the models keep theirs until `give_back`."""
        pinned = torch.cuda.is_available()
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
            if tensor.untyped_storage().nbytes()
        }
        self._copies = [
            (storage, torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned))
            for storage in storages.values()
        ]
        for storage, copy in self._copies:
            copy.copy_(_bytes_of(storage), non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.nbytes for _, copy in self._copies)

    def give_back(self) -> None:
        """Free the device's memory, behind what is queued there."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for storage, _ in self._copies:
            storage.resize_(0)

    def restore(self) -> None:
        """Fill the storages again; after an error, such as too little memory, it may be called once
        more."""
        for storage, copy in self._copies:
            if not storage.nbytes():
                storage.resize_(copy.nbytes)
                _bytes_of(storage).copy_(copy, non_blocking=True)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
