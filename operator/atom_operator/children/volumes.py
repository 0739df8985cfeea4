"""Volumes of an engine pod: writable caches on a read-only root, shared memory, the weights."""

from __future__ import annotations

from typing import Any

from atom_operator.constants import MODELS_DIRECTORY
from atom_operator.domain import Plan, SourceKind

_CACHE = "/cache"
# Everything that writes below a home directory by default: downloads, kernels, compiled graphs.
CACHE_ENVIRONMENT = {
    "HOME": f"{_CACHE}/home",
    "XDG_CACHE_HOME": f"{_CACHE}/xdg",
    "HF_HOME": f"{_CACHE}/huggingface",
    "TRITON_CACHE_DIR": f"{_CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/inductor",
}
# Pages of a memory-backed volume count against the container's memory, hence a limit.
_SHARED_MEMORY = {"cpu": "128Mi", "amd": "2Gi"}


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """Mounts of the engine container."""
    result: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": _CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if plan.model.kind is SourceKind.CLAIM:
        result.append(
            {
                "name": "models",
                "mountPath": f"{MODELS_DIRECTORY}/{plan.model.claim}",
                "readOnly": True,
            }
        )
    return result


def volumes(plan: Plan) -> list[dict[str, Any]]:
    """Volumes of the pod."""
    memory = {"medium": "Memory", "sizeLimit": _SHARED_MEMORY[plan.accelerator.type]}
    result: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
    ]
    if plan.model.kind is SourceKind.CLAIM:
        claim = {"claimName": plan.model.claim, "readOnly": True}
        result.append({"name": "models", "persistentVolumeClaim": claim})
    return result
