"""The disk of its node that a pod requests: downloads, compiled kernels, temporary files. Pure.

A pod without a request is placed where its download does not fit, and evicted half way through it.
The request is the expected use, so that a node is not filled; no limit is set.
"""

from __future__ import annotations

from atom.sizing import ModelFacts
from atom_operator.domain import DiskTier, ModelLocation, SourceKind

_GIB = 1024**3
# Kernels and graphs of a GPU's compilers; on a CPU next to nothing is compiled.
_COMPILED_BYTES = {"amd": 8 * _GIB, "cpu": _GIB}
# A hub's client keeps parts of files until they are whole, and tokenizers and configs beside them.
_DOWNLOAD_PERCENT = 110
_UNKNOWN_DOWNLOAD_BYTES = 16 * _GIB


def disk_bytes(
    stated: int | None,
    model: ModelLocation,
    facts: ModelFacts | None,
    accelerator: str,
    tier: DiskTier | None = None,
) -> int:
    """Compute the disk bytes of one pod, rounded up to a GiB. `stated` wins over all but the KV
    cache's files."""
    files = 0 if tier is None else tier.node_limit_bytes
    if stated is not None:
        return stated + files
    total = _COMPILED_BYTES[accelerator]
    if model.kind in (SourceKind.HUB, SourceKind.BUCKET):
        weights = facts.weight_bytes(with_mtp=True) if facts else _UNKNOWN_DOWNLOAD_BYTES
        total += weights * _DOWNLOAD_PERCENT // 100
    return -(-(total + files) // _GIB) * _GIB
