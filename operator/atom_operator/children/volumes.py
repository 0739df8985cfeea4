"""Volumes of an engine pod: writable caches on a read-only root, shared memory, the weights."""

from __future__ import annotations

from typing import Any

from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.children import naming
from atom_operator.constants import MODELS_DIRECTORY
from atom_operator.domain import Plan, SourceKind

_CACHE = "/cache"
_COMPILED = "/compile-cache"  # where a claim keeps what was compiled
# Everything that writes below a home directory by default: downloads and the like.
CACHE_ENVIRONMENT = {
    "HOME": f"{_CACHE}/home",
    "XDG_CACHE_HOME": f"{_CACHE}/xdg",
    "HF_HOME": f"{_CACHE}/huggingface",
}
# Kernels and compiled graphs, by the folder below the cache's.
_COMPILE_ENVIRONMENT = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
_GIB = 1024**3
_CPU_SHARED_MEMORY = 128 * 1024**2
_LEAST_SHARED_MEMORY = 8 * 1024**2


def cache_environment(plan: Plan) -> dict[str, dict[str, Any]]:
    """Variables that send every cache to a writable volume."""
    claimed = plan.integrations.compile_cache_claim is not None
    compiled = f"{_COMPILED}/{compile_cache_key(plan)}" if claimed else _CACHE
    folders = {name: f"{compiled}/{folder}" for name, folder in _COMPILE_ENVIRONMENT.items()}
    return {name: {"value": value} for name, value in {**CACHE_ENVIRONMENT, **folders}.items()}


def compile_cache_key(plan: Plan) -> str:
    """The folder of what was compiled: an engine never reads what another image, architecture or
    split of the model has left. An image by tag is told apart by its tag only."""
    accelerator, engine = plan.accelerator, plan.engine
    parts = (
        engine.image,
        accelerator.product or "-",
        accelerator.resource_name or accelerator.type,
        f"tp{engine.tensor_parallel}",
        f"nodes{engine.nodes}",
    )
    return naming.short_hash("|".join(parts))


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """Mounts of the engine container."""
    result: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": _CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if plan.integrations.compile_cache_claim is not None:
        result.append({"name": "compile-cache", "mountPath": _COMPILED})
    if plan.model.kind is SourceKind.CLAIM:
        result.append(
            {
                "name": "models",
                "mountPath": f"{MODELS_DIRECTORY}/{plan.model.claim}",
                "readOnly": True,
            }
        )
    return result


def _shared_memory_bytes(plan: Plan) -> int:
    """Size of /dev/shm. Its pages count against the container's memory, hence never without a
    limit, and on a CPU never more than an eighth of that memory. On GPUs every rank's collectives
    exchange through it: a GiB for each, and one for the processes."""
    accelerator = plan.accelerator
    if accelerator.type == "amd":
        return (1 + plan.engine.devices_per_pod) * _GIB
    share = (accelerator.memory_bytes or 0) // 8 // _LEAST_SHARED_MEMORY * _LEAST_SHARED_MEMORY
    return min(_CPU_SHARED_MEMORY, max(_LEAST_SHARED_MEMORY, share))


def volumes(plan: Plan) -> list[dict[str, Any]]:
    """Volumes of the pod."""
    memory = {"medium": "Memory", "sizeLimit": memory_quantity(_shared_memory_bytes(plan))}
    result: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
    ]
    if plan.integrations.compile_cache_claim is not None:
        kept = {"claimName": plan.integrations.compile_cache_claim}
        result.append({"name": "compile-cache", "persistentVolumeClaim": kept})
    if plan.model.kind is SourceKind.CLAIM:
        claim = {"claimName": plan.model.claim, "readOnly": True}
        result.append({"name": "models", "persistentVolumeClaim": claim})
    return result
