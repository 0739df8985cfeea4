"""The parts of a spec about storage that outlives a pod, and about its preparation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, MemoryQuantity

_ClaimName = Annotated[str, Field(min_length=1, max_length=253)]


class CompileCacheSpec(ApiModel):
    """A claim that keeps compiled kernels over restarts."""

    claim: _ClaimName
    """Name of a PersistentVolumeClaim in the same namespace. Everything is below a folder named
    after the image, the product and the parallelism, so that other engines never read it."""


class WeightsCacheSpec(ApiModel):
    """A claim that a Job downloads the model into, once for all who use it."""

    claim: _ClaimName
    """Name of a PersistentVolumeClaim in the same namespace. Engine pods mount it read-only; with
    more than one replica it must allow that (ReadWriteMany)."""
    prune: Literal["WhenFull", "Always"] | None = None
    """The Job removes from the claim what its own downloads have put there and nothing of the
    namespace uses any more: where the model needs the room (WhenFull), or before each download
    (Always). Default: nothing is removed."""


class JobsSpec(ApiModel):
    """The Jobs that prepare a model: its download into a claim, and a look at its config.json."""

    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the one of the Jobs by strategic merge, such as resources of the
    container prepare, labels, or tolerations. Metadata, placement, security, variables and mounts
    of spec.template hold for Jobs without a word here."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] | None = None
    """How long a Job may take with all its retries before it has failed; it is tried again later.
    Default: a day for a download, half an hour for a look."""


class CacheSpec(ApiModel):
    """Storage that outlives a pod."""

    compile: CompileCacheSpec | None = None
    """Compiled kernels; default: they live as long as the pod."""
    weights: WeightsCacheSpec | None = None
    """The weights of an hf:// or s3:// model; default: every pod downloads them for itself."""
    ephemeral_storage: MemoryQuantity | None = None
    """Disk of its node that each pod asks for, for what it downloads and compiles. Default: by the
    size of the weights where pods download them, and a few GiB for the rest."""
