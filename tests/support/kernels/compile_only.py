"""A card that compiles and runs nothing: Triton's driver without a device.

Launches within a warm-up compile need no card, only its name; tensors are the CPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

H200 = GPUTarget("cuda", 90, 32)
_INDEX = 97  # no device of a test's has it: what is compiled for it meets nobody else's


class CompileOnlyDriver:
    """What Triton asks of a device."""

    def launcher_cls(self, source: object, metadata: object) -> None:
        """What launches kernels of a signature: nothing."""

    def get_current_target(self) -> GPUTarget:
        return H200

    def get_current_device(self) -> int:
        return _INDEX

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compile_only() -> Iterator[None]:
    """Triton's launches see an H200 that is not there."""
    before = driver._active
    driver.set_active(CompileOnlyDriver())
    try:
        yield
    finally:
        driver._active = before
