"""The spec of an AtomDeployment: the fields that a user may write, and the API server's rules.

Only fields that this version honours exist. Of the defaults only replicas is a schema default (the
scale subresource needs a value); validation/defaulting.py resolves the others, so that the operator
writes nothing into the spec.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.accelerator import AcceleratorSpec
from atom_operator.api.v1alpha1.cache import CacheSpec, JobsSpec
from atom_operator.api.v1alpha1.canary import CanarySpec
from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, cel, keyed_by
from atom_operator.api.v1alpha1.disaggregation import DisaggregationSpec
from atom_operator.api.v1alpha1.engine import (
    ConfigMapKeyRef,
    EngineSpec,
    LocalRef,
    ParallelismSpec,
    ResourceName,
)
from atom_operator.api.v1alpha1.integration_fields import (
    AutoscalingSpec,
    FrontendSpec,
    GatewaySpec,
    MonitoringSpec,
    NetworkPolicySpec,
    SloSpec,
)
from atom_operator.api.v1alpha1.lora import MODEL_FORMS, MODEL_PATTERN, AdapterSpec
from atom_operator.api.v1alpha1.object_metadata import ObjectsSpec
from atom_operator.api.v1alpha1.rollout import RolloutSpec

# Of spec.templateRemove: names after dots, items of a list or map in brackets.
REMOVED_PATTERN = r"^(metadata|spec)((\.[A-Za-z][A-Za-z0-9]*)|(\[[^\[\]]+\]))+$"


class SecretKeyRef(ApiModel):
    """Selects one key of a Secret in the same namespace."""

    name: ResourceName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """Key in the Secret."""


class BucketSpec(ApiModel):
    """Access to a bucket. Omitted fields follow from the pod's identity and variables."""

    endpoint: Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s]+$")] | None = None
    """Address of the S3 service, such as https://minio.example.org:9000; default: AWS."""
    region: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Region of the bucket; default: us-east-1."""
    secret_ref: LocalRef | None = None
    """Secret with the keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary
    credentials, AWS_SESSION_TOKEN. Default: pods get no keys."""


class ModelImageSpec(ApiModel):
    """Mount of an image that holds a model."""

    folder: Annotated[str, Field(max_length=256, pattern=r"^(/[^/:\s]+)+$")] | None = None
    """Directory of the image with config.json and *.safetensors; default: /models."""
    volume: bool | None = None
    """true: an image volume; false: a sidecar of the image, which must have sh, ln and sleep.
    Default: an image volume if the API server supports them."""


class ModelSpec(ApiModel):
    """The model to serve."""

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
            (
                "!has(self.s3) || self.source.startsWith('s3://')",
                "s3 applies to s3:// sources only",
            ),
            (
                "!has(self.image) || self.source.startsWith('oci://')",
                "image applies to oci:// sources only",
            ),
        )
    )

    source: Annotated[
        str,
        Field(
            max_length=512,
            json_schema_extra=cel(
                (
                    f"self.matches(r'{MODEL_PATTERN}') && !self.contains('/../')"
                    " && !self.endsWith('/..')",
                    MODEL_FORMS,
                )
            ),
        ),
    ]
    """Location of the weights: hf://Org/Name on the Hugging Face hub, pvc://claim/path on a claim
    that pods mount read-only, path:///dir inside the engine's image, s3://bucket/prefix, or a model
    image, oci://registry/repository:tag. Name the image by digest if it must not change."""
    s3: BucketSpec | None = None
    """Access to the bucket of an s3:// source."""
    image: ModelImageSpec | None = None
    """Mount of the image of an oci:// source."""
    served_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Model name in the HTTP API; default: the last part of source."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit on the hub; default: main."""
    token_secret_ref: SecretKeyRef | None = None
    """Hub token for gated models. The engine gets it as HF_TOKEN and, if it serves adapters, as a
    file that follows the Secret."""
    config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """The model's config.json (or the part of it that describes the shape), for the capacity plan
    of a model that is not in the operator's catalogue."""
    config_ref: ConfigMapKeyRef | None = None
    """A ConfigMap that holds the model's config.json, for the same purpose."""


class AtomDeploymentSpec(ApiModel):
    """Desired state: a model, served by engine pods."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.cache) || !has(self.cache.weights)"
                " || self.model.source.startsWith('hf://')"
                " || self.model.source.startsWith('s3://')",
                "cache.weights applies to hf:// and s3:// sources only",
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
            (
                "!has(self.canary) || (has(self.gateway) && has(self.gateway.httpRoute))",
                "canary needs gateway.httpRoute, which divides the requests",
            ),
            (
                "!has(self.disaggregation) || !has(self.disaggregation.decode)"
                " || !has(self.disaggregation.decode.replicas) || self.replicas == 1"
                " || self.replicas == self.disaggregation.decode.replicas",
                "disaggregation.decode.replicas is the number of decode pods: leave replicas out",
            ),
            (
                "!has(self.disaggregation) || !has(self.disaggregation.decode)"
                " || !has(self.disaggregation.decode.autoscaling) || !has(self.autoscaling)",
                "disaggregation.decode.autoscaling scales the decode pods: leave autoscaling out",
            ),
        )
    )

    profile: ResourceName | None = None
    """The AtomProfile that is merged below this spec; fields of the spec win. Default: the profile
    that the namespace's label serving.atom.dev/profile names, else the profile named default if it
    exists."""
    model: ModelSpec
    """The model to serve."""
    adapters: (
        Annotated[list[AdapterSpec], Field(max_length=256, json_schema_extra=keyed_by("name"))]
        | None
    ) = None
    """LoRA adapters that are served beside the model; needs engine.lora. Pods load and unload them
    when this list changes; no pod is replaced."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """Options of the engine."""
    parallelism: ParallelismSpec = Field(default_factory=ParallelismSpec)
    """Distribution of one replica over devices."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of engine pods. With autoscaling, the initial number; the autoscaler changes it."""
    suspend: bool | None = None
    """true stops all pods as a scale-down does, and keeps the Service, claims, status and
    spec.replicas. false starts the replicas again. Default: false."""
    autoscaling: AutoscalingSpec | None = None
    """Autoscaling of the replicas by load. Default: none."""
    slo: SloSpec | None = None
    """Targets of latency. With autoscaling, replicas follow the latencies that the engines predict;
    without it, the targets are only reported. Default: none."""
    accelerator: AcceleratorSpec = Field(default_factory=AcceleratorSpec)
    """The devices of a replica."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """Replacement of pods."""
    canary: CanarySpec | None = None
    """Another revision that takes a share of the requests through gateway.httpRoute until it is
    promoted or undone. Default: none."""
    disaggregation: DisaggregationSpec | None = None
    """Prefill and decode in separate pods: prefill pods compute prompts, and decode pods, the ones
    that the rest of this spec describes, read the KV pages and answer. Default: every pod does
    both."""
    frontend: FrontendSpec | None = None
    """Servers without an engine that hold the clients' connections and send the work to the engine
    pods: if an engine pod is killed, its answers continue on another pod. While no frontend is
    ready, the Service leads to the engine pods. Default: none; {} with disaggregation."""
    gateway: GatewaySpec | None = None
    """Objects of the Gateway API; they need its CRDs."""
    monitoring: MonitoringSpec | None = None
    """Objects for Prometheus and Grafana; they need the Prometheus operator's CRDs."""
    network_policy: NetworkPolicySpec | None = None
    """Renders a NetworkPolicy. Default: none."""
    cache: CacheSpec = Field(default_factory=CacheSpec)
    """Claims that outlive a pod, and the node's disk that a pod requests."""
    service_account_name: ResourceName | None = None
    """ServiceAccount of the pods, if the operator's chart allows one (template.allowed:
    serviceAccountName). Default: the operator creates one without rights."""
    objects: ObjectsSpec | None = None
    """Labels and annotations of the objects that the operator creates besides the pods."""
    jobs: JobsSpec = Field(default_factory=JobsSpec)
    """The Jobs that prepare the model."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the rendered one by strategic merge, as Kubernetes defines it
    (lists by their merge keys, $patch and the other directives). The overlay wins, and the Accepted
    condition reports it."""
    template_remove: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=512, pattern=REMOVED_PATTERN)]] | None,
        Field(max_length=64),
    ] = None
    """Paths that are removed from the pod template last, such as spec.securityContext.runAsUser,
    spec.containers[engine].livenessProbe or metadata.labels[team]. A null in template does the
    same, but kubectl apply drops it."""
