"""The parts of a spec about storage that outlives a pod, and about its preparation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from atom_operator.api.v1alpha1.common import (
    PRESERVE,
    QUANTITY_PATTERN,
    ApiModel,
    MemoryQuantity,
    cel,
)

_ClaimName = Annotated[str, Field(min_length=1, max_length=253)]


class CompileCacheSpec(ApiModel):
    """A claim that keeps compiled kernels over restarts."""

    claim: _ClaimName
    """Name of a PersistentVolumeClaim in the same namespace. Each engine uses a folder named after
    its image, product and parallelism, so that no other engine reads its kernels."""


class WeightsCacheSpec(ApiModel):
    """A claim that a Job downloads the model into, once for all who use it."""

    claim: _ClaimName
    """Name of a PersistentVolumeClaim in the same namespace. Engine pods mount it read-only; more
    than one replica needs the access mode ReadWriteMany."""
    prune: Literal["WhenFull", "Always"] | None = None
    """The Job removes its earlier downloads that no object of the namespace uses any more: if the
    model needs the space (WhenFull), or before each download (Always). Default: it removes
    nothing."""


class JobsSpec(ApiModel):
    """The Jobs that prepare a model: its download into a claim, and a look at its config.json."""

    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the one of the Jobs by strategic merge, such as resources of the
    container prepare, labels, or tolerations. Metadata, placement, security, variables and mounts
    of spec.template apply to Jobs as well."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] | None = None
    """Seconds that a Job may take with all its retries before it has failed; the operator tries it
    again later. Default: a day for a download, half an hour for an inspection."""


AUTO_SIZE = "Auto"
_TierMemory = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(max_length=32, pattern=rf"^{AUTO_SIZE}$|{QUANTITY_PATTERN}"),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": rf"^{AUTO_SIZE}$|{QUANTITY_PATTERN}",
            **cel(
                (
                    f"string(self) == '{AUTO_SIZE}' || "
                    "quantity(string(self)).isGreaterThan(quantity('0'))",
                    f"must be more than 0, or {AUTO_SIZE}",
                )
            ),
        }
    ),
]


class KVDiskSpec(ApiModel):
    """Files that keep blocks of the KV cache behind the host's memory."""

    size: MemoryQuantity
    """Size of the files, of all pods that share them; the files that were used longest ago are
    removed."""
    claim: _ClaimName | None = None
    """Name of a PersistentVolumeClaim in the same namespace, which all pods share and whose files
    outlive them; more than one replica needs the access mode ReadWriteMany. Default: an emptyDir of
    each pod on its node's disk, which the pod's request for ephemeral-storage includes."""


class KVCacheSpec(ApiModel):
    """Tiers of the KV cache below the device."""

    host_memory: _TierMemory
    """Memory of the node that keeps blocks of the KV cache that leave the device, for prompts that
    return. It is added to the pod's memory request; on cpu it is a part of accelerator.memory. Auto
    is 70 % of the memory that the pod's share of the devices brings on the smallest node with the
    device, less the pod's own; on cpu a quarter of accelerator.memory."""
    disk: KVDiskSpec | None = None
    """Files for blocks that leave the host's memory. Default: they are computed again."""


class CacheSpec(ApiModel):
    """Storage that outlives a pod, and tiers of the KV cache."""

    kv: KVCacheSpec | None = None
    """Tiers of the KV cache below the device. Default: evicted blocks are computed again."""

    compile: CompileCacheSpec | None = None
    """Compiled kernels. Default: they are lost with the pod."""
    weights: WeightsCacheSpec | None = None
    """The weights of an hf:// or s3:// model. Default: every pod downloads them."""
    ephemeral_storage: MemoryQuantity | None = None
    """Disk of the node that each pod requests for downloads and compiled kernels. Default: the size
    of the weights if pods download them, and a few GiB for the rest."""
