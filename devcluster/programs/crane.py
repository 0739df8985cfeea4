"""crane, which pushes to OCI registries and serves one for tests; no cluster needs it."""

from __future__ import annotations

from pathlib import Path

from devcluster.programs.binaries import Group, ensure_binaries
from devcluster.settings import Settings

_MODULE = "github.com/google/go-containerregistry"
GROUP = Group("crane", _MODULE, {"crane": f"{_MODULE}/cmd/crane"}, note="about 1 minute")


def ensure_crane(settings: Settings) -> Path:
    return ensure_binaries(settings, [GROUP])["crane"]
