"""VirtualMemoryPool: device memory that can be released while tensors keep their addresses.

torch allocates inside `allocating` from a range of addresses that the pool reserves. `unmap`
releases the memory behind the addresses, `map` puts new memory there. So views, pointers in
kernels' arguments and captured graphs stay valid; only the contents are lost. virtual_memory.c
calls the driver, by functions that CUDA and HIP both have. Once per process and pool; a pool ends
with the process.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import torch

from atom.errors import AtomError
from atom.utils.c_library import (
    BuildError,
    CSources,
    built_library,
    find_toolchain,
    loaded_library,
)

SOURCES = CSources(
    name="virtual_memory",
    folder=Path(__file__).parent,
    flags=("-std=gnu11", "-O2", "-Wall", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"),
)
# A large piece of memory need not be free in one; some drivers fail with such.
_CHUNK_BYTES = 256 << 20


class VirtualMemoryError(AtomError):
    """The driver refused a call; the message names the call."""


class VirtualMemoryPool:
    """A range of a device's addresses, and the memory mapped to it."""

    def __init__(self, device: torch.device) -> None:
        """Reserve addresses for twice the device's memory. Raises `BuildError` without a C
        compiler, `VirtualMemoryError` if the driver lacks virtual memory management."""
        path, self._library = _library()
        total = torch.cuda.mem_get_info(device)[1]
        self._number = self._library.vm_pool(device.index or 0, 2 * total, _CHUNK_BYTES)
        if self._number < 0:
            raise VirtualMemoryError(_problem(self._library))
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            path, f"vm_allocate_{self._number:02o}", "vm_free"
        )
        self._pool = torch.cuda.MemPool(allocator.allocator())  # type: ignore[no-untyped-call]
        # Torch ends the process if a pool is destroyed before the graphs captured in it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))

    def allocating(self) -> AbstractContextManager[None]:
        """Return a context in which torch allocates from the pool."""
        return torch.cuda.use_mem_pool(self._pool)

    @property
    def id(self) -> tuple[int, int]:
        """Return torch's handle of the pool, with which graphs are captured in it."""
        return self._pool.id

    @property
    def unmapped_bytes(self) -> int:
        """Return the bytes of addresses without memory, which torch counts as reserved."""
        return int(self._library.vm_unmapped_bytes(self._number))

    def unmap(self) -> None:
        """Release the memory once the device's queued work is done: its contents are lost."""
        torch.cuda.synchronize()
        self._check(self._library.vm_unmap(self._number))

    def map(self) -> None:
        """Map memory to the addresses again, with undefined contents. Raises `VirtualMemoryError`,
        such as for too little memory; the call may then be repeated."""
        self._check(self._library.vm_map(self._number))

    def _check(self, code: int) -> None:
        if code:
            raise VirtualMemoryError(_problem(self._library))


def _problem(library: ctypes.CDLL) -> str:
    return f"virtual memory of the device: {library.vm_problem().decode()}"


@cache
def _library() -> tuple[str, ctypes.CDLL]:
    """Load the library; return it and its path. Raises `BuildError` and `VirtualMemoryError`."""
    driver, prefix = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so", "cu")
    with built_library(SOURCES, find_toolchain()) as path:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the compiled library cannot be loaded: {error}") from error
        library.vm_problem.restype = ctypes.c_char_p
        library.vm_unmapped_bytes.restype = ctypes.c_size_t
        library.vm_pool.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        if library.vm_open(loaded_library(driver).encode(), prefix.encode()):
            raise VirtualMemoryError(_problem(library))
        return str(path), library
