"""The objects that a plan requests beyond its pods, with every default resolved. Frozen values, no
decisions.

Built by plan/resolve_integrations.py, rendered by children/*.py. An object that the cluster does
not serve is left out and listed in `missing`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from atom.sizing import MAX_TENSOR_PARALLEL
from atom_operator.kinds import Kind

Labels = Mapping[str, str]


class EngineFeature(StrEnum):
    """Name the features that a spec may request and an engine may lack, as in the chart."""

    EXPERT_PARALLEL = "expertParallel"
    SPECULATION = "speculation"


class TemplateFeature(StrEnum):
    """Name the rights beyond the restricted Pod Security Standard; named as in the chart."""

    SERVICE_ACCOUNT = "serviceAccountName"
    HOST_PID = "hostPID"
    HOST_IPC = "hostIPC"
    HOST_NETWORK = "hostNetwork"
    HOST_PORT = "hostPort"
    HOST_PATH = "hostPath"
    VOLUMES = "volumes"  # of another type than the standard's
    SECRETS = "secrets"  # that no typed field of the spec names
    PRIVILEGED = "privileged"
    PRIVILEGE_ESCALATION = "privilegeEscalation"  # more rights than the parent process
    CAPABILITIES = "capabilities"  # added to a container's own
    RUN_AS_ROOT = "runAsRoot"  # uid 0, or the image's unknown user
    ROOT_GROUP = "rootGroup"  # group 0
    UNCONFINED = "unconfined"  # without seccomp, AppArmor or SELinux, or with all of /proc
    SYSCTLS = "sysctls"
    MOUNT_PROPAGATION = "mountPropagation"  # of a container's mounts to the node
    PROBE_HOST = "probeHost"  # requests of the kubelet to another address than the pod's
    NODE_NAME = "nodeName"  # past the scheduler, or the one node of that name
    TOLERATIONS = "tolerations"  # of every taint
    RUNTIME_CLASS = "runtimeClassName"
    PRIORITY_CLASS = "priorityClassName"  # one of Kubernetes' own, system-…
    OTHER_FIELDS = "otherFields"  # that this version does not know


ENGINE_USER_ID = 65532
FORBIDDEN_BY_DEFAULT = frozenset(TemplateFeature)
FeatureValue = tuple[TemplateFeature, str]


def template_features(
    allowed: Iterable[str], forbidden: Iterable[str] | None
) -> tuple[frozenset[TemplateFeature], frozenset[FeatureValue]]:
    """Read template.allowed and template.forbidden of the chart: the forbidden features, and
    allowed single values of them, such as `volumes/nfs`. `forbidden` None: all that are not
    allowed, including those of later versions. Raises ValueError."""
    names = list(allowed)
    values = frozenset(
        (TemplateFeature(feature), value)
        for feature, slash, value in (name.partition("/") for name in names)
        if slash
    )
    whole = frozenset(TemplateFeature(name) for name in names if "/" not in name)
    listed = (
        FORBIDDEN_BY_DEFAULT if forbidden is None else frozenset(map(TemplateFeature, forbidden))
    )
    return listed - whole, values


class PickerKind(StrEnum):
    """The projects whose endpoint pickers can be run; named as in the chart."""

    LLM_D = "llm-d"
    INFERENCE_EXTENSION = "inference-extension"


# The releases whose configuration is rendered.
PICKER_IMAGES = {
    PickerKind.LLM_D: "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0",
    PickerKind.INFERENCE_EXTENSION: "registry.k8s.io/gateway-api-inference-extension/epp:v1.3.0",
}


@dataclass(frozen=True, slots=True)
class PickerProgram:
    """Name the endpoint picker that is run for models whose spec asks for one."""

    kind: PickerKind = PickerKind.LLM_D
    image: str = PICKER_IMAGES[PickerKind.LLM_D]


@dataclass(frozen=True, slots=True)
class SiteAddresses:
    """State where other parts of the site are."""

    prometheus: str | None = None  # that KEDA asks
    runbooks: str | None = None  # the URL of docs/runbooks, for the annotations of alerts
    operator_namespace: str | None = None  # that NetworkPolicies admit


@dataclass(frozen=True, slots=True)
class Site:
    """Hold the administrator's settings of this operator, for every AtomDeployment."""

    addresses: SiteAddresses = SiteAddresses()
    # What the engine images can do: over how many devices of a node, and over how many nodes.
    engine_tensor_parallel: int = MAX_TENSOR_PARALLEL
    engine_multi_node: bool = True
    # Architectures (of config.json) beyond this version's, in every form; "*" stands for all.
    engine_architectures: tuple[str, ...] = ()
    engine_features: frozenset[EngineFeature] = frozenset()
    template_forbidden: frozenset[TemplateFeature] = FORBIDDEN_BY_DEFAULT
    template_values: frozenset[FeatureValue] = frozenset()  # of forbidden features, allowed
    user_id: int | None = (
        ENGINE_USER_ID  # that pods run as; None: the cluster gives each namespace some
    )
    pull_secrets: tuple[str, ...] = ()  # of the registry, in every namespace
    picker: PickerProgram = field(default_factory=PickerProgram)
    # What is laid below every spec for which no AtomProfile is named, as one's spec.
    defaults: Mapping[str, Any] | None = None

    def allows(self, feature: TemplateFeature, value: str | None = None) -> bool:
        """Return whether a template may have the feature, as a whole or with this value."""
        if feature not in self.template_forbidden:
            return True
        return value is not None and (feature, value) in self.template_values

    def with_abilities(self, changes: Mapping[str, Any]) -> Site:
        """Return the site of an engine image that can do something else; by fields' names."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Words:
    """Labels and annotations of an object."""

    labels: Labels = field(default_factory=dict)
    annotations: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """Hold the labels and annotations that a spec puts on objects beside the pods: on all, and by
    kind."""

    common: Words = field(default_factory=Words)
    kinds: Mapping[str, Words] = field(default_factory=dict)  # by a kind's name

    def of(self, kind: str) -> Words:
        own = self.kinds.get(kind, Words())
        labels = {**self.common.labels, **own.labels}
        return Words(labels, {**self.common.annotations, **own.annotations})


# For plans that state a model's needs, whichever engine runs it.
ANY_ENGINE = Site(
    addresses=SiteAddresses(prometheus="http://any"),
    engine_tensor_parallel=sys.maxsize,
    engine_multi_node=True,
    engine_architectures=("*",),
    engine_features=frozenset(EngineFeature),
    template_forbidden=frozenset(),
)


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of latency in seconds, None for no target, and the percentage of requests within
    them."""

    ttft_seconds: float | None
    itl_seconds: float | None
    percentile: int


@dataclass(frozen=True, slots=True)
class ScalingTargets:
    """Load per replica that an autoscaler aims at; None for a measure that does not count.
    concurrency: unknown without any plan; concurrency, waiting: None if latencies decide instead;
    slo: the latencies. The KV cache of pods that compute prompts for others is full of pages that
    wait to be read, and is no measure."""

    concurrency: int | None
    kv_usage_percent: int | None
    waiting: int | None
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class ReplicaLimit:
    """Describe how many replicas the nodes hold, and in words where."""

    replicas: int
    message: str
    node_autoscaler: str | None = None  # that adds nodes for Pending pods, if any


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Configure one autoscaler. `limit` is None if the nodes are not known."""

    method: Literal["KEDA", "HPA"]
    min_replicas: int
    max_replicas: int
    targets: ScalingTargets
    cooldown_seconds: int
    activation_query: str | None = None
    prometheus_address: str | None = None
    authentication: tuple[str, str] | None = None  # kind, name
    limit: ReplicaLimit | None = None
    pending_replicas: int | None = None  # more than the nodes hold; None: as the nodes show
    kept_replicas: int = 0  # the fewest while a rollout is short of places

    @property
    def fewest(self) -> int:
        """Return the fewest replicas to request."""
        return max(self.min_replicas, self.kept_replicas)

    @property
    def most(self) -> int:
        """Return the most replicas to request now: a rollout that is short of places keeps its
        number, even above the ceiling, because fewer would stop pods that serve."""
        return max(self.ceiling, self.kept_replicas)

    @property
    def pending(self) -> int:
        """Return how many replicas beyond the nodes' capacity may be Pending, to bring nodes."""
        if self.pending_replicas is not None:
            return self.pending_replicas
        return int(self.limit is not None and self.limit.node_autoscaler is not None)

    @property
    def ceiling(self) -> int:
        """Return the most replicas to request: the spec's, as far as there are devices for them or
        their Pending pods bring nodes."""
        if self.limit is None:
            return self.max_replicas
        most = min(self.max_replicas, self.limit.replicas + self.pending)
        return max(1, self.min_replicas, most)


@dataclass(frozen=True, slots=True)
class Frontend:
    """Servers without an engine in front of the pods. memory: that each asks for, as a quantity;
    is_limited: to that."""

    replicas: int
    memory: str
    is_limited: bool
    template: Mapping[str, Any] | None = None  # laid over that of their pods


@dataclass(frozen=True, slots=True)
class EndpointPicker:
    """The Service that chooses the pod of a request. name: None where we run it."""

    name: str | None
    port: int
    failure_mode: Literal["FailOpen", "FailClose"]
    program: PickerProgram | None = None  # the picker that we run for it
    template: Mapping[str, Any] | None = None  # laid over that of its pod


RouteMatch = Literal["Path", "Header", "All"]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A route from Gateways; `parents` as the API writes them."""

    parents: tuple[Mapping[str, str], ...]
    hostnames: tuple[str, ...]
    matches: frozenset[RouteMatch] = frozenset({"Path", "Header", "All"})


@dataclass(frozen=True, slots=True)
class PodMonitoring:
    """Describe how Prometheus scrapes the pods."""

    labels: Labels
    interval: str


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Hold the objects of Prometheus and Grafana that are asked for. alerts, dashboard: the labels
    of their objects; runbooks: the URL of the alerts' runbooks."""

    pods: PodMonitoring | None = None
    alerts: Labels | None = None
    dashboard: Labels | None = None
    runbooks: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """Peers that may connect to the engine port, as a NetworkPolicy writes them."""

    clients: tuple[Mapping[str, Any], ...]
    prometheus: tuple[Mapping[str, Any], ...]
    operator_namespace: str | None


@dataclass(frozen=True, slots=True)
class Missing:
    """Something asked for that this cluster does not serve."""

    kind: Kind
    field: str


@dataclass(frozen=True, slots=True)
class Integrations:
    """Holds the integrations that are asked for; None and empty: not asked for."""

    autoscaling: Autoscaling | None = None
    endpoint_picker: EndpointPicker | None = None
    frontend: Frontend | None = None
    http_route: HttpRoute | None = None
    monitoring: Monitoring = Monitoring()
    network: NetworkAccess | None = None
    compile_cache_claim: str | None = None
    preflight: bool = False
    slo: Slo | None = None
    missing: tuple[Missing, ...] = field(default=())

    @property
    def picker_program(self) -> PickerProgram | None:
        """Return the endpoint picker that we run; None for none."""
        return self.endpoint_picker.program if self.endpoint_picker else None
