"""The package of NIXL, NVIDIA's library that moves memory between machines. Optional, and imported
only by an engine that uses it."""

from __future__ import annotations

from importlib.util import find_spec

# One for each version of CUDA; `nixl` chooses between them, and is also a build for ROCm.
_PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")
NIXL_REMEDY = "run: pip install atom-platform[nixl], or leave NIXL out, for shm and tcp"


def nixl_package() -> str | None:
    """Return the name of the package that is installed; None if there is none."""
    return next((name for name in _PACKAGES if find_spec(name) is not None), None)
