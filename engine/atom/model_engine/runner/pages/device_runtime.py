"""DeviceRuntime: memory of a GPU that other processes of the host reach by handles.

The calls of CUDA's runtime, which HIP's has under names of its own. torch's reductions would do the
same, but count readers in files of /dev/shm, which outlive a process that is killed, and keep the
memory of a reader that is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from atom.utils.c_library import loaded_library

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses tell


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_byte * _HANDLE_BYTES)]


class DeviceRuntime:
    """Calls for one device, from any thread. name: of the runtime. Each raises `OSError` if it
    fails."""

    def __init__(self, device: torch.device) -> None:
        """Raises `OSError` if the runtime cannot be found."""
        self.name = "hip" if torch.version.hip else "cuda"
        library = "libamdhip64.so" if torch.version.hip else "libcudart.so"
        self._library = ctypes.CDLL(loaded_library(library))
        self._device = device
        describe = getattr(self._library, f"{self.name}GetErrorString")
        describe.restype = ctypes.c_char_p
        self._describe: Callable[[int], bytes] = describe

    def allocate(self, size: int) -> int:
        """Return the address of new memory."""
        address = ctypes.c_void_p()
        self._call("Malloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value or 0

    def export(self, address: int) -> bytes:
        """Return the handle by which other processes open memory."""
        handle = _Handle()
        self._call("IpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """Map the memory of another process, of this device or of another one."""
        if len(handle) != _HANDLE_BYTES:
            raise OSError(f"a handle of {len(handle)} bytes; handles have {_HANDLE_BYTES}")
        address = ctypes.c_void_p()
        own = _Handle.from_buffer_copy(handle)
        flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
        self._call("IpcOpenMemHandle", ctypes.byref(address), own, flags)
        return address.value or 0

    def close(self, address: int) -> None:
        """Unmap the memory of another process."""
        self._call("IpcCloseMemHandle", ctypes.c_void_p(address))

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Begin to copy bytes, in the order of a stream."""
        addresses = ctypes.c_void_p(to), ctypes.c_void_p(source)
        kind = ctypes.c_int(_ANY_DIRECTION)
        self._call("MemcpyAsync", *addresses, ctypes.c_size_t(size), kind, ctypes.c_void_p(stream))

    def _call(self, name: str, *arguments: Any) -> None:
        with torch.cuda.device(self._device):
            code = getattr(self._library, self.name + name)(*arguments)
        if code:
            getattr(self._library, f"{self.name}GetLastError")()  # or torch would report it later
            raise OSError(f"{self.name}{name}: {self._describe(code).decode()}")
