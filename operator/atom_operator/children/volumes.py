"""Volumes of an engine pod: writable caches on a read-only root, shared memory, the weights."""

from __future__ import annotations

from typing import Any

from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.children import naming
from atom_operator.children.model_sources.model_image import image_mount, image_volume
from atom_operator.constants import ADAPTERS_KEY, ENGINE_CONTAINER, MODELS_DIRECTORY
from atom_operator.domain import (
    Accelerator,
    DiskTier,
    EngineOptions,
    Manifest,
    ModelLocation,
    ObjectKey,
    Plan,
    PodsPlan,
    SourceKind,
)
from atom_operator.domain.resources import EPHEMERAL_STORAGE
from atom_operator.integration_values import Integrations

_CACHE = "/cache"
_COMPILED = "/compile-cache"  # the folder of compiled kernels on a claim
KV_DISK_FOLDER = "/kv-cache"  # the KV cache's files behind the host's memory
_ADAPTERS_FOLDER = "/etc/atom/adapters"
ADAPTERS_PATH = f"{_ADAPTERS_FOLDER}/{ADAPTERS_KEY}"
_API_KEY_FOLDER, _API_KEY_FILE = "/etc/atom/api-key", "key"
PEER_SECRET_FOLDER, PEER_SECRET_KEY = "/etc/atom/peers", "secret"
API_KEY_PATH = f"{_API_KEY_FOLDER}/{_API_KEY_FILE}"
_HUB_TOKEN_FOLDER, _HUB_TOKEN_FILE = "/etc/atom/hub-token", "token"
HUB_TOKEN_PATH = f"{_HUB_TOKEN_FOLDER}/{_HUB_TOKEN_FILE}"
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


def cache_environment(
    engine: EngineOptions, accelerator: Accelerator, integrations: Integrations
) -> dict[str, dict[str, Any]]:
    """Return the variables that send every cache to a writable volume."""
    claimed = integrations.compile_cache_claim is not None
    compiled = f"{_COMPILED}/{compile_cache_key(engine, accelerator)}" if claimed else _CACHE
    folders = {name: f"{compiled}/{folder}" for name, folder in _COMPILE_ENVIRONMENT.items()}
    return {name: {"value": value} for name, value in {**CACHE_ENVIRONMENT, **folders}.items()}


def compile_cache_key(engine: EngineOptions, accelerator: Accelerator) -> str:
    """Name the folder of compiled kernels: an engine never reads those of another image,
    architecture or split of the model. Images by tag are distinguished by their tag only."""
    parts = (
        engine.serving.image,
        accelerator.product or "-",
        accelerator.resource_name or accelerator.type,
        f"tp{engine.tensor_parallel}",
        f"nodes{engine.nodes}",
    )
    return naming.short_hash("|".join(parts))


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """Return the mounts of the engine container."""
    result: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": _CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if plan.engine.serving.api_key_secret is not None:
        mount = {"name": "api-key", "mountPath": _API_KEY_FOLDER, "readOnly": True}
        result.append(mount)
    if has_peers(plan.engine, plan.integrations):
        mount = {"name": "peers", "mountPath": PEER_SECRET_FOLDER, "readOnly": True}
        result.append(mount)
    if adapters_token(plan.engine, plan.model.location) is not None:
        mount = {"name": "hub-token", "mountPath": _HUB_TOKEN_FOLDER, "readOnly": True}
        result.append(mount)
    if plan.integrations.compile_cache_claim is not None:
        result.append({"name": "compile-cache", "mountPath": _COMPILED})
    if plan.engine.serving.disk_tier is not None:
        result.append({"name": "kv-cache", "mountPath": KV_DISK_FOLDER})
    if plan.model.location.kind is SourceKind.CLAIM:
        result.append(
            {
                "name": "models",
                "mountPath": f"{MODELS_DIRECTORY}/{plan.model.location.claim}",
                "readOnly": True,
            }
        )
    if plan.model.location.image is not None:
        result.append(image_mount())
    if plan.engine.lora is not None:
        result.append({"name": "adapters", "mountPath": _ADAPTERS_FOLDER, "readOnly": True})
        for number, claim in enumerate(plan.engine.lora.claims):
            path = f"{MODELS_DIRECTORY}/{claim}"
            result.append({"name": f"adapters-{number}", "mountPath": path, "readOnly": True})
    return result


def shared_memory_bytes(engine: EngineOptions, accelerator: Accelerator) -> int:
    """Size of /dev/shm. Its pages count against the container's memory, hence never without a
    limit, and on a CPU never more than an eighth of that memory. On GPUs every rank's collectives
    exchange through it: a GiB for each, and one for the processes."""
    if accelerator.type == "amd":
        return (1 + engine.devices_per_pod) * _GIB
    share = (accelerator.memory_bytes or 0) // 8 // _LEAST_SHARED_MEMORY * _LEAST_SHARED_MEMORY
    return min(_CPU_SHARED_MEMORY, max(_LEAST_SHARED_MEMORY, share))


def volumes(plan: Plan) -> list[dict[str, Any]]:
    """Return the volumes of the pod."""
    memory = {
        "medium": "Memory",
        "sizeLimit": memory_quantity(shared_memory_bytes(plan.engine, plan.accelerator)),
    }
    result: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
    ]
    if plan.engine.serving.api_key_secret is not None:
        result.append(_renewed("api-key", plan.engine.serving.api_key_secret, _API_KEY_FILE))
    if has_peers(plan.engine, plan.integrations):
        # As a folder, which the kubelet renews: each of its entries counts.
        peers = {"secretName": naming.peers_name(callers_key(plan))}
        result.append({"name": "peers", "secret": peers})
    token = adapters_token(plan.engine, plan.model.location)
    if token is not None:
        result.append(_renewed("hub-token", token, _HUB_TOKEN_FILE))
    if plan.integrations.compile_cache_claim is not None:
        kept = {"claimName": plan.integrations.compile_cache_claim}
        result.append({"name": "compile-cache", "persistentVolumeClaim": kept})
    if plan.engine.serving.disk_tier is not None:
        result.append({"name": "kv-cache", **_kv_disk(plan.engine.serving.disk_tier)})
    if plan.model.location.kind is SourceKind.CLAIM:
        claim = {"claimName": plan.model.location.claim, "readOnly": True}
        result.append({"name": "models", "persistentVolumeClaim": claim})
    if plan.model.location.image is not None:
        result.append(image_volume(plan.model.location.image))
    if plan.engine.lora is not None:
        # If it is missing there are no adapters: older pods may outlive it.
        listed = {"name": naming.adapters_name(plan.identity.key), "optional": True}
        result.append({"name": "adapters", "configMap": listed})
        for number, name in enumerate(plan.engine.lora.claims):
            claim = {"claimName": name, "readOnly": True}
            result.append({"name": f"adapters-{number}", "persistentVolumeClaim": claim})
    return result


def _kv_disk(tier: DiskTier) -> dict[str, Any]:
    """Return the source of the volume of the KV cache's files."""
    if tier.claim is not None:
        return {"persistentVolumeClaim": {"claimName": tier.claim}}
    return {"emptyDir": {"sizeLimit": memory_quantity(tier.node_limit_bytes)}}


def callers_key(plan: Plan) -> ObjectKey:
    """Return the AtomDeployment whose frontends send requests to these pods."""
    key, transfer = plan.identity.key, plan.engine.serving.transfer
    if transfer is None or transfer.decode_name is None:
        return key
    return ObjectKey(key.namespace, transfer.decode_name)


def has_peers(engine: EngineOptions, integrations: Integrations) -> bool:
    """Return whether the engines' servers hand answers to each other."""
    is_asked = engine.serving.handover or engine.serving.transfer is not None
    return is_asked or integrations.frontend is not None


def peer_arguments(engine: EngineOptions, integrations: Integrations) -> list[str]:
    """Return the flag of servers that hand answers to each other."""
    return ["--handover-secret-file", PEER_SECRET_FOLDER] if has_peers(engine, integrations) else []


def adapters_token(engine: EngineOptions, location: ModelLocation) -> tuple[str, str] | None:
    """Return name and key of the Secret with which a serving engine continues to download; None if
    it downloads nothing more, or without a token."""
    if engine.lora is None:
        return None
    fetched = location.download
    return location.token_secret if fetched is None else fetched.token_secret


def _renewed(name: str, secret: tuple[str, str], file: str) -> dict[str, Any]:
    """Mount a key of a Secret as a whole folder, which the kubelet renews; a single file would stay
    unchanged."""
    items = [{"key": secret[1], "path": file}]
    return {"name": name, "secret": {"secretName": secret[0], "items": items}}


def with_disk(pods: PodsPlan, template: Manifest) -> Manifest:
    """Return the finished template with a request for the node's disk, if its caches or the KV
    cache's files are on that disk and no request is stated: an overlay may have put them on a claim
    or in memory."""
    pod = template["spec"]
    found = [item for item in pod.get("volumes") or () if item.get("name") in ("cache", "kv-cache")]
    sources = [item["emptyDir"] for item in found if item.get("emptyDir") is not None]
    on_disk = any(not source.get("medium") for source in sources)
    if pods.disk_bytes is None or not (on_disk or pods.disk_is_stated):
        return template
    asked = memory_quantity(pods.disk_bytes)
    containers = [
        _asking(item, asked) if item.get("name") == ENGINE_CONTAINER else item
        for item in pod["containers"]
    ]
    return {**template, "spec": {**pod, "containers": containers}}


def _asking(container: Manifest, amount: str) -> Manifest:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    if EPHEMERAL_STORAGE in requests or EPHEMERAL_STORAGE in limits:
        return container
    return {
        **container,
        "resources": {**resources, "requests": {**requests, EPHEMERAL_STORAGE: amount}},
    }
