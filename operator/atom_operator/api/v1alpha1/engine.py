"""Settings of the engine, and of the spread of one replica over devices."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, cel, keyed_by
from atom_operator.api.v1alpha1.lora import LoraSpec

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

    method: Literal["ngram", "mtp", "eagle3"] = "ngram"
    """ngram: what followed the same tokens before, in prompt or answer; mtp: by the multi-token
    prediction layer of the model's own checkpoint; eagle3: by a draft model."""
    tokens: Annotated[int, Field(ge=1, le=16)] | None = None
    """Tokens drafted per sequence and step, at most; default: 5 with ngram, else 1."""
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
    """eagle3: location of the draft model, hf://Org/Name or path:///dir inside the image."""
    draft_config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """eagle3: the draft model's config.json, for the capacity plan."""


class EngineSpec(ApiModel):
    """Settings of the engine."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs)"
                " || self.maxNumBatchedTokens >= self.maxNumSeqs",
                "maxNumBatchedTokens must be at least maxNumSeqs: every running sequence takes one"
                " token of a step",
            )
        )
    )

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Engine image; default: the operator's setting for the accelerator type."""
    image_pull_secrets: PullSecrets | None = None
    """Secrets of the image's registry in the same namespace. Default: those of the namespace's
    ServiceAccount named default, and the operator's setting."""
    api_key_secret_ref: ApiKeySecretRef | None = None
    """The key that clients must send. Pods read it from a mounted file: running pods take a new key
    within about a minute, without a restart. Default: clients need no key."""
    max_model_len: Annotated[int, Field(ge=1, le=10_485_760)] | None = None
    """Longest context in tokens; default: the model's own maximum."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most sequences that run at once; default: 512."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Most tokens in one step; default: 16384."""
    block_size: (
        Annotated[
            int,
            Field(
                ge=1,
                le=1024,
                json_schema_extra=cel(
                    (
                        "self == 1 || self % 16 == 0",
                        "must be 1 or a multiple of 16, at most 1024",
                    )
                ),
            ),
        ]
        | None
    ) = None
    """Tokens per KV cache block: 1 or a multiple of 16; default: 16."""
    gpu_memory_utilization: (
        Annotated[
            float,
            Field(
                json_schema_extra=cel(
                    ("self > 0.0 && self <= 1.0", "must be greater than 0 and at most 1")
                )
            ),
        ]
        | None
    ) = None
    """Share of the device's memory (on cpu: of accelerator.memory) that the engine may use;
    greater than 0 and at most 1, default 0.9."""
    kv_cache_dtype: Literal["auto", "bf16", "fp32", "fp8"] | None = None
    """Element type of the KV cache; auto is the type that the model computes in: its
    own on a GPU, fp32 on cpu. fp8 has a float32 scale per token and head. Default: auto."""
    prefix_caching: bool | None = None
    """Reuse the KV cache of common prompt prefixes; default: true."""
    scheduling_policy: Literal["mixed", "prefillFirst"] | None = None
    """mixed puts prefill chunks and decodes in one batch; prefillFirst runs waiting prompts before
    decodes. Default: mixed."""
    reproducible: bool | None = None
    """Return the same tokens and log-probabilities for a request, whatever other requests run.
    Options that prevent this, such as quantised models, adapters and parallelism.expert, are
    refused. Default: false."""
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

    tensor: Annotated[int, Field(ge=1, le=128)] | None = None
    """Tensor-parallel size: devices that share one copy of the model, at most 8 on each node;
    default: 1."""
    data: Annotated[int, Field(ge=1, le=128)] | None = None
    """Data-parallel size: copies of the model in each pod, behind one address, each on tensor
    devices of its own; amd only, unless they share experts. At most 8 on each node. Default: 1."""
    nodes: Annotated[int, Field(ge=1, le=16)] | None = None
    """Nodes that these devices are spread over, one pod on each, started and restarted as a
    group; more than 1 needs the LeaderWorkerSet CRD. Default: 1."""
    expert: bool | None = None
    """Every device holds whole experts of a mixture, instead of a part of each: the tensor devices
    of a copy, or with data the copies, which then share the experts and may be on several nodes.
    Default: false."""
