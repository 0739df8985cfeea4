"""cosign, which checks signatures of files and of what lies in registries; no cluster needs it."""

from __future__ import annotations

from pathlib import Path

from devcluster.programs.binaries import Group, ensure_binaries
from devcluster.settings import Settings

_MODULE = "github.com/sigstore/cosign/v3"
GROUP = Group(
    "cosign",
    _MODULE,
    {"cosign": f"{_MODULE}/cmd/cosign"},
    note="about 4 minutes on 2 cores the first time",
)


def ensure_cosign(settings: Settings) -> Path:
    return ensure_binaries(settings, [GROUP])["cosign"]
