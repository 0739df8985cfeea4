"""Settings of the engine, and of the spread of one replica over devices."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, cel, keyed_by
from atom_operator.api.v1alpha1.lora import LoraSpec
from atom_operator.api.v1alpha1.option_field import OPTION_AT, option_field

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
ResourceName = Annotated[str, Field(min_length=1, max_length=253)]


class LocalRef(ApiModel):
    """An object in the same namespace."""

    name: ResourceName
    """Its name."""


class ApiKeySecretRef(ApiModel):
    """Selects one key of a Secret in the same namespace."""

    name: ResourceName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = (
        "api-key"
    )
    """Key in the Secret."""


class ConfigMapKeyRef(ApiModel):
    """Selects one key of a ConfigMap in the same namespace."""

    name: ResourceName
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "config.json"
    """Key whose value is the text of a Hugging Face config.json."""


class EnvVar(ApiModel):
    """An environment variable of the engine container."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!(has(self.value) && has(self.valueFrom))", "set at most one of value and valueFrom")
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Literal value."""
    value_from: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """Source of the value, as in a pod: secretKeyRef, configMapKeyRef, fieldRef…"""


Variables = Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=keyed_by("name"))]
PullSecrets = Annotated[list[LocalRef], Field(max_length=16, json_schema_extra=keyed_by("name"))]


class SpeculativeSpec(ApiModel):
    """Several tokens per step, drafted and then verified."""

    method: Literal["ngram", "suffix", "mtp", "eagle3", "draft_model"] = "ngram"
    """ngram: what followed the same tokens before, in prompt or answer; suffix: also in earlier
    answers of the engine; mtp: by the multi-token prediction layer of the model's own checkpoint;
    eagle3: by a layer that was made for the model; draft_model: by a whole model of the same
    vocabulary."""
    tokens: int | None = option_field("num_speculative_tokens")
    adaptive: bool | None = None
    """Choose the number of drafts by their acceptance and the cost of the step; false: always draft
    the most. Default: true."""
    draft_model: (
        Annotated[
            str,
            Field(max_length=512, pattern=rf"^(hf://{_NAME}/{_NAME}|path://(/[^/:\s]+)+)$"),
        ]
        | None
    ) = None
    """eagle3, draft_model: location of the draft model, hf://Org/Name or path:///dir inside the
    image."""
    draft_config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """eagle3, draft_model: the draft model's config.json, for the capacity plan."""


BATCH_HOLDS_EVERY_SEQUENCE = (
    "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs)"
    " || self.maxNumBatchedTokens >= self.maxNumSeqs",
    "maxNumBatchedTokens must be at least maxNumSeqs: every running sequence takes one token of a"
    " step",
)


class EngineSpec(ApiModel):
    """Settings of the engine."""

    model_config = ConfigDict(json_schema_extra=cel(BATCH_HOLDS_EVERY_SEQUENCE))

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Engine image; default: the operator's setting for the accelerator type."""
    image_pull_secrets: PullSecrets | None = None
    """Secrets of the image's registry in the same namespace. Default: those of the namespace's
    ServiceAccount named default, and the operator's setting."""
    api_key_secret_ref: ApiKeySecretRef | None = None
    """The key that clients must send. Pods read it from a mounted file: running pods take a new key
    within about a minute, without a restart. Default: clients need no key."""
    max_model_len: int | None = option_field("max_model_len")
    max_num_seqs: int | None = option_field("max_num_seqs")
    max_num_batched_tokens: int | None = option_field("max_num_batched_tokens")
    block_size: int | None = option_field("block_size")
    gpu_memory_utilization: float | None = option_field("gpu_memory_utilization")
    kv_cache_dtype: Literal["auto", "bf16", "fp32", "fp8"] | None = option_field("kv_cache_dtype")
    prefix_caching: bool | None = option_field("enable_prefix_caching")
    scheduling_policy: Literal["mixed", "prefillFirst"] | None = option_field("scheduling_policy")
    deadline_ms: int | None = option_field("deadline_ms")
    deadline_action: Literal["refuse", "queue"] | None = option_field("deadline_action")
    reproducible: bool | None = option_field("reproducible")
    max_images: int | None = option_field("max_images")
    image_memory_mib: int | None = option_field("image_memory_mib")
    speculative: SpeculativeSpec | None = None
    """Speculative decoding, which changes no token. Default: none."""
    lora: LoraSpec | None = None
    """Room for LoRA adapters; {} takes the defaults. Default: none are served."""
    extra_args: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1024)]] | None, Field(max_length=64)
    ] = None
    """Further engine arguments, appended last; arguments that a field of this API sets are
    refused."""
    env: Variables | None = None
    """Environment variables of the engine container."""


_SHARES_EXPERTS = "has(self.data) && self.data > 1 && has(self.expert) && self.expert"


class ParallelismSpec(ApiModel):
    """Spread of one replica over devices."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"{_SHARES_EXPERTS} || (has(self.tensor) ? self.tensor : 1)"
                " % (has(self.nodes) ? self.nodes : 1) == 0",
                "tensor must be a multiple of nodes: every node has as many devices",
            ),
            (
                f"!({_SHARES_EXPERTS}) || self.data % (has(self.nodes) ? self.nodes : 1) == 0",
                "data must be a multiple of nodes: every node has as many devices",
            ),
            (
                "(has(self.tensor) ? self.tensor : 1) <= 8 * (has(self.nodes) ? self.nodes : 1)",
                "tensor must be at most 8 for each node",
            ),
            (
                "!has(self.data) || self.data == 1"
                " || self.data * (has(self.tensor) ? self.tensor : 1)"
                " <= 8 * (has(self.nodes) ? self.nodes : 1)",
                "data times tensor must be at most 8 for each node: of one, all copies of the model"
                " are in one pod",
            ),
            (
                "!has(self.data) || self.data == 1 || !has(self.nodes) || self.nodes == 1"
                " || (has(self.expert) && self.expert)",
                "data applies to replicas of one node only, unless expert is true; raise replicas"
                " instead",
            ),
        )
    )

    tensor: int | None = option_field("tensor_parallel_size")
    data: int | None = option_field("data_parallel_size")
    nodes: int | None = option_field("nnodes")
    expert: bool | None = option_field("enable_expert_parallel")


# The engine's options that one field of spec.engine sets, by the name of the field.
ENGINE_FIELDS = {
    name: OPTION_AT[path]
    for name, field in EngineSpec.model_fields.items()
    if (path := f"engine.{field.alias}") in OPTION_AT
}
