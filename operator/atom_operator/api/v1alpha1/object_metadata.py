"""The part of a spec that labels and annotates the objects that are made beside the pods."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel

_Words = Annotated[dict[str, str] | None, Field(json_schema_extra={"maxProperties": 32})]


class ObjectMetadataSpec(ApiModel):
    """Metadata of one kind of object."""

    labels: _Words = None
    """Further labels; those that the operator sets stay."""
    annotations: _Words = None
    """Further annotations."""


class ObjectsSpec(ObjectMetadataSpec):
    """Metadata of the objects that are made for an AtomDeployment; that of its pods is
    template.metadata."""

    service: ObjectMetadataSpec | None = None
    """Of the Service."""
    service_account: ObjectMetadataSpec | None = None
    """Of the ServiceAccount, such as the role of a cloud's identity."""
    job: ObjectMetadataSpec | None = None
    """Of the Jobs that prepare the model, and of their pods."""
    pod_disruption_budget: ObjectMetadataSpec | None = None
    """Of the PodDisruptionBudget."""
