"""The part of a spec about what outlives a pod."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel

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


class CacheSpec(ApiModel):
    """What outlives a pod."""

    compile: CompileCacheSpec | None = None
    """Compiled kernels; default: they live as long as the pod."""
    weights: WeightsCacheSpec | None = None
    """The weights of an hf:// model; default: every pod downloads them for itself."""
