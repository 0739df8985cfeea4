"""SharedStorages: memory of a device that another process opens, on the CPU.

torch's own shared storages, by names that travel as handles do. As with a GPU's memory, a mapping
stays readable after its owner has freed it or ended.
"""

from __future__ import annotations

import ctypes

import msgspec
import torch


class SharedStorages:
    """Implements Runtime. opened: how many mappings there are; copies: how many were made."""

    name = "double"

    def __init__(self) -> None:
        self._own: dict[int, torch.UntypedStorage] = {}
        self._others: dict[int, list[torch.UntypedStorage]] = {}
        self.copies = 0

    @property
    def opened(self) -> int:
        return sum(map(len, self._others.values()))

    def allocate(self, size: int) -> int:
        storage = torch.UntypedStorage._new_using_filename_cpu(size)
        self._own[storage.data_ptr()] = storage
        return storage.data_ptr()

    def export(self, address: int) -> bytes:
        return msgspec.msgpack.encode(self._own[address]._share_filename_cpu_())

    def open(self, handle: bytes) -> int:
        manager, name, size = msgspec.msgpack.decode(handle, type=tuple[bytes, bytes, int])
        try:
            storage = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        self._others.setdefault(storage.data_ptr(), []).append(storage)
        return storage.data_ptr()

    def close(self, address: int) -> None:
        self._others[address].pop()

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        self.copies += 1
        ctypes.memmove(to, source, size)
