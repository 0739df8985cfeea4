"""Select the source of a model's download by its name: a hub id, or s3://bucket/prefix."""

from __future__ import annotations

from atom.model_source.hub_snapshot import HubSource
from atom.model_source.s3_snapshot import SCHEME, S3Source
from atom.model_source.snapshot_folder import ModelSource


def model_source(model: str) -> ModelSource:
    """Return the source that `model` names. Raises `ModelError`."""
    return S3Source(model) if model.startswith(SCHEME) else HubSource()
