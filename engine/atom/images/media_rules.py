"""MediaRules: the places of images that a server may read. Light to import, for command lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MediaRules:
    """The places of images besides data URLs. domains: hosts, in lower case; local_path: the
    folder of files; None for none."""

    domains: frozenset[str] = frozenset()
    local_path: Path | None = None
