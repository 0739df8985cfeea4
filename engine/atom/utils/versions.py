"""Versions of the software that computes in this process, for /server_info and reports of
faults."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

import atom

_PACKAGES = ("triton", "llguidance")  # if they are installed


def software_versions() -> dict[str, str]:
    """Name → version; rocm or cuda is the one that torch was built for."""
    found = {"atom": atom.__version__, "python": platform.python_version()}
    found["torch"] = str(torch.__version__)
    for name, version in (("rocm", torch.version.hip), ("cuda", torch.version.cuda)):
        if version is not None:
            found[name] = version
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
