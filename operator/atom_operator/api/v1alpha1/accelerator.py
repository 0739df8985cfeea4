"""The part of a spec about the devices of a replica."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import ApiModel, MemoryQuantity, cel
from atom_operator.api.v1alpha1.engine import ResourceName

# The products of plan/accelerators.py (a test compares); for another device set memory and
# select its nodes by spec.template.
ProductName = Literal[
    "MI100",
    "MI210",
    "MI250",
    "MI250X",
    "MI300A",
    "MI300X",
    "MI308X",
    "MI325X",
    "MI350X",
    "MI355X",
]
DeviceGroups = Annotated[list[Annotated[int, Field(ge=1, le=2_147_483_647)]], Field(max_length=8)]
PartitionMode = Annotated[str, Field(pattern=r"^(spx|dpx|qpx|cpx)_nps[1248]$")]
ExtendedResource = Annotated[str, Field(max_length=128, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]


class DeviceClaimSpec(ApiModel):
    """Devices by a ResourceClaim of each pod (resource.k8s.io/v1), from a DRA driver instead of a
    device plugin."""

    device_class: ResourceName = "gpu.amd.com"
    """DeviceClass of AMD's driver."""
    partition: PartitionMode | None = None
    """Compute and memory mode of a part of a GPU, such as cpx_nps4; default: whole GPUs."""


class AcceleratorSpec(ApiModel):
    """The accelerators that a replica runs on."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.type != 'cpu' || (!has(self.product) && !has(self.resourceName))",
                "product and resourceName apply to type amd only",
            ),
            ("self.type != 'cpu' || !has(self.claim)", "claim applies to type amd only"),
            (
                "!(has(self.claim) && has(self.resourceName))",
                "set claim (a DRA driver) or resourceName (a device plugin)",
            ),
            ("self.type != 'cpu' || !has(self.preflight)", "preflight applies to type amd only"),
            (
                "self.type != 'cpu' || !has(self.deviceGroups)",
                "deviceGroups applies to type amd only",
            ),
        )
    )

    type: Literal["amd", "cpu"] = "amd"
    """amd: Instinct GPUs; cpu: no accelerator, for development and small models."""
    product: ProductName | None = None
    """GPU product such as MI300X: pods go to nodes with that device, and the plan uses its
    memory. For any other device set memory and select its nodes by spec.template."""
    resource_name: ExtendedResource | None = None
    """Extended resource of one device; default: amd.com/gpu."""
    claim: DeviceClaimSpec | None = None
    """Pods claim their devices (Dynamic Resource Allocation) instead of naming an extended
    resource: devices of this product, with at least this memory. {} takes the defaults."""
    memory: MemoryQuantity | None = None
    """amd: memory of one device, if product does not imply it. cpu: memory of the container, which
    is its limit and the base of the plan; default: 4Gi."""
    device_groups: DeviceGroups | None = None
    """Numeric ids of the groups that own /dev/kfd and /dev/dri/renderD* on the nodes (render,
    video). Pods run as an unprivileged user and need these groups unless every user may open the
    files. amd only."""
    preflight: bool | None = None
    """An init container first checks the devices (present, permitted, as many as asked for, of an
    architecture that the engine has kernels for) and reports the first fault. amd only; default:
    false."""
