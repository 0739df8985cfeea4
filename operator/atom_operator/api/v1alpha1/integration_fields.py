"""The parts of a spec that request objects of other systems: autoscalers, gateways, monitoring.

Presence requests the object and `{}` is enough; absence removes it. Defaults are resolved by
plan/resolve_integrations.py, so that the operator writes nothing into the spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, MemoryQuantity, cel

_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Labels = Annotated[dict[str, str] | None, Field(json_schema_extra={"maxProperties": 32})]
_Percent = Annotated[int, Field(ge=1, le=100)]
DURATION_PATTERN = r"^[1-9][0-9]*(ms|s|m|h)$"


class TriggerAuthenticationRef(ApiModel):
    """KEDA's login to Prometheus."""

    name: _Name
    """Name of the TriggerAuthentication or ClusterTriggerAuthentication."""
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] | None = None
    """Default: TriggerAuthentication, in the same namespace."""


class PrometheusSpec(ApiModel):
    """The Prometheus that KEDA asks."""

    server_address: Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s]+$")]
    """Base address, such as http://prometheus-operated.monitoring.svc:9090."""
    authentication_ref: TriggerAuthenticationRef | None = None
    """Credentials, if the server needs any."""


class AutoscalingSpec(ApiModel):
    """The number of replicas follows the load; spec.replicas is then only the first number."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
                "minReplicas must be at most maxReplicas",
            ),
            (
                "!has(self.minReplicas) || self.minReplicas > 0 || has(self.activationQuery)",
                "minReplicas 0 needs activationQuery: without a pod no engine metric can ask for"
                " the first one",
            ),
            (
                "!has(self.method) || self.method != 'HPA' || !has(self.minReplicas)"
                " || self.minReplicas > 0",
                "minReplicas 0 needs method KEDA: a HorizontalPodAutoscaler never goes below 1",
            ),
            (
                "!has(self.idle) || !has(self.minReplicas) || self.minReplicas > 0",
                "idle Sleep keeps the pods: minReplicas must be at least 1",
            ),
            ("!has(self.idleSeconds) || has(self.idle)", "idleSeconds needs idle"),
        )
    )

    method: Literal["Auto", "KEDA", "HPA"] | None = None
    """KEDA renders a ScaledObject that asks Prometheus, HPA a HorizontalPodAutoscaler on custom
    metrics (an adapter must serve them). Default: Auto, KEDA where its CRD exists, else HPA."""
    min_replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Fewest replicas; 0 with KEDA only. Default: 1."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """Most replicas; fewer are asked for while the nodes cannot hold as many (CapacityLimited)."""
    pending_replicas: Annotated[int, Field(ge=0, le=100)] | None = None
    """Replicas that may be requested beyond the number that the nodes hold. Their pods are Pending,
    for which a node autoscaler (Karpenter, cluster-autoscaler) adds nodes. Default: 1 if the nodes
    show a node autoscaler, else 0."""
    typical_context_tokens: Annotated[int, Field(ge=1, le=10_485_760)] | None = None
    """Tokens of a typical request, prompt and answer together. With the planned capacity, they give
    the number of requests that a replica holds. Default: 4096, at most maxModelLen."""
    target_concurrency: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Target of running requests per replica. Default: 80% of the requests that the planned KV
    cache holds at typicalContextTokens."""
    target_kv_usage_percent: _Percent | None = None
    """Target percentage of the KV cache in use. Default: 80."""
    target_waiting_requests: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Target of waiting requests per replica. Default: a tenth of targetConcurrency."""
    cooldown_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Seconds of lower load before a replica is removed. Default: 300."""
    idle: Literal["Sleep"] | None = None
    """Sleep: a pod without requests releases its device's memory and keeps its weights in the
    host's memory, which the pod's memory request covers. The next request wakes the pod and is not
    lost. If maxReplicas equals minReplicas, no autoscaler is created. Default: pods stay awake."""
    idle_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Seconds without a request after which a pod sleeps. Default: 600."""
    activation_query: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """PromQL whose value above 0 starts the first replica, such as the requests that wait at a
    gateway; KEDA only."""
    prometheus: PrometheusSpec | None = None
    """Prometheus server for KEDA. Default: the operator's setting."""

    @property
    def fewest(self) -> int:
        """Return how few replicas there may be."""
        return 1 if self.min_replicas is None else self.min_replicas

    @property
    def moves_replicas(self) -> bool:
        """Return whether the load decides their number: not where pods sleep and nothing else."""
        return self.idle is None or self.max_replicas > self.fewest


LATENCY_PATTERN = r"^[1-9][0-9]{0,6}(ms|s)$"
_Latency = Annotated[str, Field(max_length=16, pattern=LATENCY_PATTERN)]


class SloSpec(ApiModel):
    """Targets of latency, which SloMet reports and spec.autoscaling keeps."""

    model_config = ConfigDict(
        json_schema_extra=cel(("has(self.ttft) || has(self.itl)", "set ttft, itl or both"))
    )

    ttft: _Latency | None = None
    """Most time from a request to its first token, such as 2s or 800ms."""
    itl: _Latency | None = None
    """Most time between two tokens of an answer, such as 50ms."""
    percentile: Annotated[int, Field(ge=50, le=99)] | None = None
    """Percentage of the requests that the targets apply to. Default: 90."""


class EndpointPickerSpec(ApiModel):
    """The endpoint picker of an InferencePool: a Service that chooses the pod of a request."""

    name: _Name
    """Name of the picker's Service, in the same namespace."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """gRPC port of the Service. Default: 9002."""
    failure_mode: Literal["FailOpen", "FailClose"] | None = None
    """Behaviour of the gateway while the picker does not answer. Default: FailOpen."""


class ParentRef(ApiModel):
    """A Gateway that a route attaches to."""

    name: _Name
    """Name of the Gateway."""
    namespace: _Name | None = None
    """Namespace of the Gateway; default: the namespace of this object."""
    section_name: _Name | None = None
    """Listener of the Gateway; default: every listener that admits the route."""


class HttpRouteSpec(ApiModel):
    """An HTTPRoute from Gateways to the pods."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=32)]
    """The Gateways."""
    hostnames: Annotated[list[_Name] | None, Field(max_length=16)] = None
    """Host names of the route; default: all host names of the listener."""
    matches: (
        Annotated[
            list[Literal["Path", "Header", "All"]],
            Field(
                min_length=1,
                max_length=3,
                json_schema_extra={"x-kubernetes-list-type": "set"},
            ),
        ]
        | None
    ) = None
    """Requests that the route takes, so that many models share one Gateway. Path: requests below
    /NAMESPACE/NAME/v1. Header: requests to /v1 whose header X-Gateway-Model-Name is the served
    name, which body-based routing sets. All: every other request to /v1; only one model of a
    Gateway and host name can take these. Default: all three."""


class FrontendSpec(ApiModel):
    """Servers without an engine, and so without a device, in front of the engine pods."""

    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    """Number of frontend pods. Default: 2."""
    memory: MemoryQuantity | None = None
    """Memory request and limit of each pod. Default: a request of 1Gi and a limit of 4Gi."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the one of their pods by strategic merge, such as resources of the
    container frontend. Metadata, placement and security of spec.template apply as well."""


class GatewaySpec(ApiModel):
    """Gateway API and its Inference Extension."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.prefixAware) || !self.prefixAware || !has(self.inferencePool)",
                "prefixAware runs an endpoint picker of its own: leave inferencePool out",
            ),
            (
                "!has(self.pickerTemplate) || (has(self.prefixAware) && self.prefixAware)",
                "pickerTemplate is of the endpoint picker that prefixAware runs: set prefixAware",
            ),
        )
    )

    inference_pool: EndpointPickerSpec | None = None
    """Renders an InferencePool of the engine pods with this endpoint picker."""
    prefix_aware: bool | None = None
    """Route requests to the pod that has their prompt's prefix in its cache. Renders an
    InferencePool and runs an endpoint picker as a Deployment; engines send it their cache events.
    Default: false."""
    picker_template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """PodTemplateSpec laid over the one of the endpoint picker that prefixAware runs, such as
    resources of the container picker. Metadata, placement and security of spec.template apply as
    well."""
    http_route: HttpRouteSpec | None = None
    """Renders an HTTPRoute to the InferencePool if there is one, else to the Service."""


class PodMonitorSpec(ApiModel):
    """A PodMonitor of the Prometheus operator."""

    labels: _Labels = None
    """Labels by which your Prometheus selects it."""
    interval: Annotated[str, Field(max_length=16, pattern=DURATION_PATTERN)] | None = None
    """Time between scrapes. Default: 15s."""


class LabelledSpec(ApiModel):
    """An object that is found by its labels."""

    labels: _Labels = None
    """Further labels of the object."""


class MonitoringSpec(ApiModel):
    """Objects for Prometheus and Grafana."""

    pod_monitor: PodMonitorSpec | None = None
    """Renders a PodMonitor that scrapes every engine pod."""
    alerts: LabelledSpec | None = None
    """Renders a PrometheusRule whose alerts name their runbooks."""
    dashboard: LabelledSpec | None = None
    """Renders a ConfigMap with a Grafana dashboard, labelled grafana_dashboard=1."""


class NetworkPolicySpec(ApiModel):
    """Clients that may open connections to the engine pods; the operator and the pods of one group
    always may."""

    clients: Annotated[
        list[Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]] | None,
        Field(max_length=32),
    ] = None
    """Peers as in a NetworkPolicy (podSelector, namespaceSelector, ipBlock) that may call the API.
    Default: every pod of the same namespace."""
    prometheus: Annotated[
        list[Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]] | None,
        Field(max_length=8),
    ] = None
    """Peers that may scrape /metrics, which is on the same port. Default: the pods labelled
    app.kubernetes.io/name=prometheus in every namespace."""
