"""The spec of an AtomDeployment: what a user may write, and what the API server refuses.

Only fields that this version honours exist. Of the defaults only replicas is a schema default (the
scale subresource needs a value); validation/defaulting.py resolves the others, so that nothing is
written into the spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.cache import CacheSpec, JobsSpec
from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, MemoryQuantity, cel, keyed_by
from atom_operator.api.v1alpha1.integration_fields import (
    AutoscalingSpec,
    GatewaySpec,
    MonitoringSpec,
    NetworkPolicySpec,
)
from atom_operator.api.v1alpha1.lora import SOURCE_PATTERN, AdapterSpec, LoraSpec
from atom_operator.api.v1alpha1.object_metadata import ObjectsSpec

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"

# Of spec.templateRemove: names after dots, items of a list or map in brackets.
REMOVED_PATTERN = r"^(metadata|spec)((\.[A-Za-z][A-Za-z0-9]*)|(\[[^\[\]]+\]))+$"

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
ResourceName = Annotated[str, Field(min_length=1, max_length=253)]


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ResourceName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """Key in the Secret."""


class LocalRef(ApiModel):
    """An object in the same namespace."""

    name: ResourceName
    """Its name."""


class ApiKeySecretRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ResourceName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = (
        "api-key"
    )
    """Key in the Secret."""


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ResourceName
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "config.json"
    """Key whose value is the text of a Hugging Face config.json."""


class ModelSpec(ApiModel):
    """Which model is served."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!(has(self.config) && has(self.configRef))",
                "set at most one of config and configRef",
            ),
            (
                "!has(self.revision) || self.source.startsWith('hf://')",
                "revision applies to hf:// sources only",
            ),
            (
                "!has(self.tokenSecretRef) || self.source.startsWith('hf://')",
                "tokenSecretRef applies to hf:// sources only",
            ),
        )
    )

    source: Annotated[
        str,
        Field(
            max_length=512,
            json_schema_extra=cel(
                (
                    f"self.matches(r'{SOURCE_PATTERN}') && !self.contains('/../')"
                    " && !self.endsWith('/..')",
                    "must be hf://ORG/NAME, pvc://CLAIM/PATH or path:///DIRECTORY/IN/THE/IMAGE",
                )
            ),
        ),
    ]
    """Where the weights are: hf://Org/Name on the Hugging Face hub, pvc://claim/path on a claim
    mounted read-only, or path:///dir inside the image."""
    served_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Model name in the HTTP API; default: the last part of source."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit on the hub; default: main."""
    token_secret_ref: SecretKeyRef | None = None
    """Hub token for gated models; given to the engine as HF_TOKEN."""
    config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """The model's config.json (or the part of it that describes the shape), for the capacity plan
    of a model that is not in the operator's catalogue."""
    config_ref: ConfigMapKeyRef | None = None
    """A ConfigMap that holds the model's config.json, for the same purpose."""


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
DeviceGroups = Annotated[list[Annotated[int, Field(ge=1, le=2_147_483_647)]], Field(max_length=8)]
ExtendedResource = Annotated[str, Field(max_length=128, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]


class SpeculativeSpec(ApiModel):
    """Several tokens per step, drafted and then verified."""

    method: Literal["ngram", "mtp", "eagle3"] = "ngram"
    """ngram: what followed the same tokens before, in prompt or answer; mtp: by the multi-token
    prediction layer of the model's own checkpoint; eagle3: by a draft model."""
    tokens: Annotated[int, Field(ge=1, le=16)] | None = None
    """Tokens drafted per sequence and step, at most; default: 5 with ngram, else 1."""
    adaptive: bool | None = None
    """Draft as many as pay, by how a sequence's drafts did and what the step costs; false: always
    as many as may be. Default: true."""
    draft_model: (
        Annotated[
            str,
            Field(max_length=512, pattern=rf"^(hf://{_NAME}/{_NAME}|path://(/[^/:\s]+)+)$"),
        ]
        | None
    ) = None
    """eagle3: where the draft model is, hf://Org/Name or path:///dir inside the image."""
    draft_config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """eagle3: the draft model's config.json, for the capacity plan."""


class EngineSpec(ApiModel):
    """How the engine runs."""

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
    """The key that clients must send. Pods read it from a mounted file: a new key counts in those
    that run within about a minute, and none is restarted. Default: none is needed."""
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
    """How one replica is spread over devices."""

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


class AcceleratorSpec(ApiModel):
    """Where a replica runs."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.type != 'cpu' || (!has(self.product) && !has(self.resourceName))",
                "product and resourceName apply to type amd only",
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
    memory: MemoryQuantity | None = None
    """amd: memory of one device, where product does not tell it; cpu: memory of the container,
    its limit and the base of the plan, default 4Gi."""
    device_groups: DeviceGroups | None = None
    """Numeric ids of the groups that own /dev/kfd and /dev/dri/renderD* on the nodes (render,
    video): pods run as a user without rights and need them where the files are not open to all.
    amd only."""
    preflight: bool | None = None
    """An init container first checks the devices (present, permitted, as many as asked for, of an
    architecture that the engine has kernels for) and says what is wrong. amd only; default:
    false."""


class RolloutSpec(ApiModel):
    """How pods are replaced."""

    strategy: Literal["Auto", "Surge", "InPlace", "Recreate"] | None = None
    """Surge starts a spare pod first, InPlace stops one pod and starts its successor, Recreate
    stops all first. Auto chooses for each rollout from the accelerators that are free then, and
    status.rollout says why. Default: Auto."""
    drain_seconds: Annotated[int, Field(ge=0, le=7200)] | None = None
    """How long a stopping pod may finish its running requests; default: 120."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """How long a rollout may make no progress before it has failed; default: drainSeconds, ten
    minutes for the image, and the start-up budget that the weights need."""
    auto_rollback: bool | None = None
    """Return to the last revision whose replicas were all ready when a new one fails: it passed
    the deadline, or its pods keep crashing. A later change of the spec is tried again.
    Default: true."""


class AtomDeploymentSpec(ApiModel):
    """Desired state: a model, served by engine pods."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.cache) || !has(self.cache.weights)"
                " || self.model.source.startsWith('hf://')",
                "cache.weights applies to hf:// sources only",
            ),
            (
                "!has(self.adapters) || self.adapters.size() == 0"
                " || (has(self.engine) && has(self.engine.lora))",
                "adapters need engine.lora, which says how many pods have room for; {} takes the"
                " defaults",
            ),
            (
                "!has(self.parallelism) || !has(self.parallelism.data)"
                " || self.parallelism.data == 1 || !has(self.accelerator)"
                " || self.accelerator.type != 'cpu'"
                " || (has(self.parallelism.expert) && self.parallelism.expert)",
                "parallelism.data applies to accelerator type amd only, unless expert is true;"
                " raise replicas instead",
            ),
        )
    )

    profile: ResourceName | None = None
    """The AtomProfile that is laid below this spec, which wins. Default: the one that the
    namespace's label serving.atom.dev/profile names, else the one named default where there is
    one."""
    model: ModelSpec
    """Which model is served."""
    adapters: (
        Annotated[list[AdapterSpec], Field(max_length=256, json_schema_extra=keyed_by("name"))]
        | None
    ) = None
    """LoRA adapters that are served beside the model; needs engine.lora. Pods load and unload them
    as this changes, and none is replaced."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """How the engine runs."""
    parallelism: ParallelismSpec = Field(default_factory=ParallelismSpec)
    """How one replica is spread over devices."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of engine pods; with autoscaling only the first number, which the load then moves."""
    suspend: bool | None = None
    """No pods run while this is true: they end as in a scale-down, and Service, claims, status and
    spec.replicas stay. false brings the replicas back. Default: false."""
    autoscaling: AutoscalingSpec | None = None
    """The number of replicas follows the load."""
    accelerator: AcceleratorSpec = Field(default_factory=AcceleratorSpec)
    """Where a replica runs."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How pods are replaced."""
    gateway: GatewaySpec | None = None
    """Objects of the Gateway API; they need its CRDs."""
    monitoring: MonitoringSpec | None = None
    """Objects for Prometheus and Grafana; they need the Prometheus operator's CRDs."""
    network_policy: NetworkPolicySpec | None = None
    """Renders a NetworkPolicy; absent: none, and whatever else applies decides."""
    cache: CacheSpec = Field(default_factory=CacheSpec)
    """What outlives a pod, and the disk of those that do not."""
    service_account_name: ResourceName | None = None
    """ServiceAccount that the pods run as, where the operator's chart allows one
    (template.allowed: serviceAccountName). Default: one without rights is made."""
    objects: ObjectsSpec | None = None
    """Labels and annotations of the objects that are made beside the pods."""
    jobs: JobsSpec = Field(default_factory=JobsSpec)
    """The Jobs that prepare the model."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the rendered one by strategic merge, as Kubernetes defines it
    (lists by their merge keys, $patch and the other directives); it wins, and the Accepted
    condition says that it is in effect."""
    template_remove: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=512, pattern=REMOVED_PATTERN)]] | None,
        Field(max_length=64),
    ] = None
    """Paths that are taken out of the pod template last, such as spec.securityContext.runAsUser,
    spec.containers[engine].livenessProbe or metadata.labels[team]. A null in template says the
    same, and is lost on its way through kubectl apply."""
