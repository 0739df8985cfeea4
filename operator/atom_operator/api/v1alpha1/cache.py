"""The parts of a spec about storage that outlives a pod, and about its preparation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, MemoryQuantity

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


class KVCacheSpec(ApiModel):
    """Tiers of the KV cache below the device."""

    host_memory: MemoryQuantity
    """Memory of the node that keeps blocks of the KV cache that leave the device, for prompts that
    return. It is added to the pod's memory request; on cpu it is a part of accelerator.memory."""


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
