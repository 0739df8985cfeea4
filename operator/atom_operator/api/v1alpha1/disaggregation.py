"""spec.disaggregation: prompts and answers computed by separate pods.

The names are those of llm-d and Dynamo where they agree: prefill, decode, replicas. The top level
of a spec describes the decode pods, so that an AtomDeployment that serves can be divided.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.accelerator import ProductName
from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, MemoryQuantity, cel
from atom_operator.api.v1alpha1.engine import BATCH_HOLDS_EVERY_SEQUENCE, ResourceName
from atom_operator.api.v1alpha1.integration_fields import AutoscalingSpec
from atom_operator.api.v1alpha1.option_field import option_field

_Tokens = Annotated[int, Field(ge=1, le=10_485_760)]


class RoleEngineSpec(ApiModel):
    """Options of the engine that may differ between the roles. Others decide the bytes of a KV
    page, which both roles must agree on."""

    model_config = ConfigDict(json_schema_extra=cel(BATCH_HOLDS_EVERY_SEQUENCE))

    max_num_seqs: int | None = option_field("max_num_seqs")
    max_num_batched_tokens: int | None = option_field("max_num_batched_tokens")
    gpu_memory_utilization: float | None = option_field("gpu_memory_utilization")
    scheduling_policy: Literal["mixed", "prefillFirst"] | None = option_field("scheduling_policy")


class RoleParallelismSpec(ApiModel):
    """Spread of a role's replica over devices."""

    tensor: int | None = option_field("tensor_parallel_size")
    data: int | None = option_field("data_parallel_size")


class RoleAcceleratorSpec(ApiModel):
    """The devices of a role's replica; their type is that of spec.accelerator."""

    product: ProductName | None = None
    """GPU product of the role's nodes."""
    memory: MemoryQuantity | None = None
    """Memory of one device, or on cpu of the container."""


class RoleSpec(ApiModel):
    """The pods of one role: fields that differ from the rest of the spec."""

    replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Number of pods of the role. Default: 1 for prefill, spec.replicas for decode. kubectl scale
    sets spec.replicas."""
    autoscaling: AutoscalingSpec | None = None
    """Autoscaling of the role's replicas. Default: none for prefill, spec.autoscaling for decode.
    Prefill pods scale by their waiting prompts, decode pods by running requests and KV cache."""
    engine: RoleEngineSpec | None = None
    """Options of the role's engines."""
    parallelism: RoleParallelismSpec | None = None
    """Spread of one replica of the role over devices."""
    accelerator: RoleAcceleratorSpec | None = None
    """The devices of the role."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec of the role's pods, in place of spec.template."""


class DecideSpec(ApiModel):
    """The requests whose prompt a prefill pod computes."""

    min_non_cached_tokens: _Tokens | None = None
    """Fewest tokens of a prompt, beyond those that the answering pod was sent before, that are
    worth a prefill pod. Pods compute shorter prompts themselves. Default: 512."""


class TrafficSpec(ApiModel):
    """A typical request, for the plan alone: it states whether separate pods pay."""

    prompt_tokens: _Tokens
    """Tokens of the request's prompt that no cache holds."""
    answer_tokens: _Tokens
    """Tokens of the request's answer."""


class DisaggregationSpec(ApiModel):
    """Prefill and decode in separate pods."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.prefill) != has(self.prefillFor)", "set prefill; {} takes the defaults"),
            (
                "!has(self.prefillFor) || (!has(self.decode) && !has(self.decide)"
                " && !has(self.traffic))",
                "prefillFor belongs to the operator: set prefill",
            ),
        )
    )

    prefill: RoleSpec | None = None
    """The pods that compute prompts, which belong to the AtomDeployment NAME-prefill that the
    operator creates. {} takes the defaults."""
    decode: RoleSpec | None = None
    """Fields in which the decode pods differ from the rest of the spec. Default: none."""
    decide: DecideSpec | None = None
    """The requests that are divided."""
    traffic: TrafficSpec | None = None
    """A typical request. With it the plan states whether separate pods pay."""
    transport: Literal["Auto", "TCP"] | None = None
    """Transport of KV pages between the pods. Default: Auto, the fastest that both pods have."""
    prefill_for: ResourceName | None = None
    """Set by the operator in the AtomDeployment of the prefill pods: the AtomDeployment that they
    compute prompts for."""
    profile: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """Set by the operator beside prefillFor: the AtomProfile that the decode pods have."""
