"""The spec of an AtomProfile: settings that a platform team makes once for many AtomDeployments.

Its fields are those of an AtomDeployment that a site decides, under the same names;
reconcile/profiles/profile.py merges them below a spec, which wins. It adds facts that no spec can
state: the shapes of models, and the abilities of engine images.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.accelerator import (
    DeviceClaimSpec,
    DeviceGroups,
    ExtendedResource,
)
from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, cel, keyed_by
from atom_operator.api.v1alpha1.engine import PullSecrets, ResourceName, Variables
from atom_operator.api.v1alpha1.object_metadata import ObjectsSpec
from atom_operator.api.v1alpha1.rollout import RolloutSpec

_Label = Annotated[str, Field(min_length=1, max_length=317)]
_LabelValue = Annotated[str, Field(max_length=63)]
_Address = Annotated[str, Field(min_length=1, max_length=1024)]


class ProfileAcceleratorSpec(ApiModel):
    """Access to devices on these nodes; for AtomDeployments of type amd only."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!(has(self.claim) && has(self.resourceName))",
                "set claim (a DRA driver) or resourceName (a device plugin)",
            ),
        )
    )

    resource_name: ExtendedResource | None = None
    """Extended resource of one device; ignored if the spec has a claim."""
    claim: DeviceClaimSpec | None = None
    """Pods claim their devices (Dynamic Resource Allocation) instead of naming an extended
    resource; ignored if the spec names one. {} takes the defaults."""
    device_groups: DeviceGroups | None = None
    """Numeric ids of the groups that own the device files on the nodes."""
    preflight: bool | None = None
    """An init container first checks the devices."""


class ProfileEngineSpec(ApiModel):
    """Settings that engine containers need at this site."""

    image_pull_secrets: PullSecrets | None = None
    """Secrets of the image's registry, in the namespace of each AtomDeployment; those of the spec
    are added."""
    env: Variables | None = None
    """Environment variables; one of the same name in the spec wins."""


class ProxySpec(ApiModel):
    """The proxy of a site, as variables of engines and of the Jobs that prepare models."""

    http: _Address | None = None
    """HTTP_PROXY and http_proxy."""
    https: _Address | None = None
    """HTTPS_PROXY and https_proxy."""
    no_proxy: _Address | None = None
    """NO_PROXY and no_proxy: name the cluster's own networks and suffixes."""


class CatalogueEntry(ApiModel):
    """A model whose shape is known here, so that no spec has to give it."""

    source: Annotated[str, Field(min_length=1, max_length=512)]
    """spec.model.source of the AtomDeployments, such as hf://Org/Name."""
    config: Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]
    """The model's config.json, or the part of it that describes the shape."""


class ImageAbilities(ApiModel):
    """Abilities of an engine image, in place of those that the operator's chart states for all."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """The image; * stands for any text, as in registry.example.org/atom:*."""
    max_tensor_parallel: Annotated[int, Field(ge=1, le=128)] | None = None
    """Most devices of a node over which the image divides one copy of a model."""
    multi_node: bool | None = None
    """The image divides a model over several nodes."""
    architectures: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=256)]
        | None
    ) = None
    """Architectures (of config.json) that the image runs in addition to this version's; * stands
    for all."""
    features: (
        Annotated[list[Literal["expertParallel", "speculation"]], Field(max_length=2)] | None
    ) = None
    """Features of the image in addition to this version's engine."""


class LabelRequirement(ApiModel):
    """A requirement on a label, as in a Kubernetes label selector."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                " : !has(self.values) || size(self.values) == 0",
                "values belong to In and NotIn, which need at least one",
            ),
        )
    )

    key: _Label
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In and NotIn compare with values; NotIn and DoesNotExist match without the label."""
    values: Annotated[list[_LabelValue], Field(max_length=64)] | None = None
    """Values for In and NotIn."""


class NamespaceSelector(ApiModel):
    """Selects namespaces by their labels; all requirements must match, and {} selects all."""

    match_labels: Annotated[dict[str, _LabelValue], Field(max_length=32)] | None = None
    """Labels that a namespace has."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=32)] | None = None
    """Requirements on the labels of a namespace."""


class AtomProfileStatus(ApiModel):
    """The use of an AtomProfile, as the operator that watches the whole cluster counts it."""

    deployments: Annotated[int, Field(ge=0)] | None = None
    """AtomDeployments that take it: by name, by a label of their namespace, or as the default."""
    waiting: Annotated[int, Field(ge=0)] | None = None
    """AtomDeployments whose pods do not follow its newest version yet: other AtomDeployments come
    first, their window is closed, or the change failed in one of them."""


class AtomProfileSpec(ApiModel):
    """Settings that are merged below the specs of AtomDeployments."""

    namespaces: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=63)]],
            Field(min_length=1, max_length=256),
        ]
        | None
    ) = None
    """Namespaces whose AtomDeployments may take this profile, beside those of namespaceSelector; *
    stands for any text, as in team-*. Others that name it are refused, and the profile named
    default is not laid below theirs. Absent, without namespaceSelector: every namespace."""
    namespace_selector: NamespaceSelector | None = None
    """Namespaces whose AtomDeployments may take this profile, by their labels, beside those of
    namespaces."""
    accelerator: ProfileAcceleratorSpec = Field(default_factory=ProfileAcceleratorSpec)
    """Access to devices."""
    engine: ProfileEngineSpec = Field(default_factory=ProfileEngineSpec)
    """Settings of engine containers."""
    proxy: ProxySpec = Field(default_factory=ProxySpec)
    """The site's proxy."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """Replacement of pods."""
    service_account_name: ResourceName | None = None
    """ServiceAccount of the pods, in the namespace of each AtomDeployment. It applies even if the
    operator's chart forbids specs to name one."""
    objects: ObjectsSpec | None = None
    """Labels and annotations of the objects that the operator creates besides the pods."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the rendered one by strategic merge, and spec.template over both:
    tolerations, nodeSelector, volumes, labels of pods. The Jobs that prepare models follow it."""
    models: Annotated[
        list[CatalogueEntry] | None,
        Field(
            max_length=256,
            json_schema_extra=keyed_by("source"),
        ),
    ] = None
    """Models whose shape is known here, beside the operator's catalogue."""
    images: Annotated[
        list[ImageAbilities] | None,
        Field(
            max_length=64,
            json_schema_extra=keyed_by("image"),
        ),
    ] = None
    """Abilities of engine images; the first entry that matches an image applies."""
