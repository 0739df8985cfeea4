"""Spec → Integrations: defaults, thresholds from the plan, and kinds that this cluster lacks.

Pure. validation/surroundings.py refuses; objects that are optional for serving are left out here
and reported in IntegrationsReady.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.integration_fields import (
    AutoscalingSpec,
    GatewaySpec,
    MonitoringSpec,
    SloSpec,
)
from atom_operator.constants import PICKER_PORT
from atom_operator.domain import Capacity, EngineOptions
from atom_operator.integration_values import (
    Autoscaling,
    EndpointPicker,
    Frontend,
    HttpRoute,
    Integrations,
    Missing,
    Monitoring,
    NetworkAccess,
    PodMonitoring,
    ScalingTargets,
    Site,
    Slo,
)
from atom_operator.kinds import (
    ATOM_DEPLOYMENT,
    AUTOSCALER,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    POD_MONITOR,
    PROMETHEUS_RULE,
    RESOURCE_CLAIM_TEMPLATE,
    ROLE,
    ROLE_BINDING,
    SCALED_OBJECT,
    Kind,
)
from atom_operator.plan.scaling import scaling_targets, targets_of_role

_SCRAPE_INTERVAL = "15s"
_COOLDOWN_SECONDS = 300
_SLO_PERCENTILE = 90
_SECONDS = {"ms": 1e-3, "s": 1.0}
_FRONTEND_REPLICAS = 2  # of which one may die
_FRONTEND_MEMORY = "1Gi"
_Peers = tuple[Mapping[str, Any], ...]
_SAME_NAMESPACE: _Peers = ({"podSelector": {}},)
_ANY_PROMETHEUS: _Peers = (
    {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    },
)


def asked_kinds(spec: AtomDeploymentSpec) -> dict[Kind, str]:
    """Return the optional kinds that `spec` may need, each with the field that asks for it."""
    return dict(_asked_kinds(spec))


def _asked_kinds(spec: AtomDeploymentSpec) -> Iterator[tuple[Kind, str]]:
    gateway, monitoring = spec.gateway, spec.monitoring
    if spec.autoscaling and spec.autoscaling.moves_replicas:
        method = spec.autoscaling.method
        if method != "KEDA":
            yield AUTOSCALER, "spec.autoscaling"
        if method != "HPA":
            yield SCALED_OBJECT, "spec.autoscaling"
    if (spec.parallelism.nodes or 1) > 1:
        yield LEADER_WORKER_SET, "spec.parallelism.nodes"
    if gateway and gateway.inference_pool:
        yield INFERENCE_POOL, "spec.gateway.inferencePool"
    if gateway and gateway.prefix_aware:
        for kind in (INFERENCE_POOL, ROLE, ROLE_BINDING):
            yield kind, "spec.gateway.prefixAware"
    if gateway and gateway.http_route:
        yield HTTP_ROUTE, "spec.gateway.httpRoute"
    if monitoring and monitoring.pod_monitor:
        yield POD_MONITOR, "spec.monitoring.podMonitor"
    if monitoring and monitoring.alerts:
        yield PROMETHEUS_RULE, "spec.monitoring.alerts"
    if spec.canary:
        yield ATOM_DEPLOYMENT, "spec.canary"
    if spec.disaggregation and spec.disaggregation.prefill:
        yield ATOM_DEPLOYMENT, "spec.disaggregation"
    if spec.accelerator.claim:
        yield RESOURCE_CLAIM_TEMPLATE, "spec.accelerator.claim"
    if spec.network_policy:
        yield NETWORK_POLICY, "spec.networkPolicy"


def resolve_integrations(
    spec: AtomDeploymentSpec,
    options: EngineOptions,
    capacity: Capacity | None,
    served: Set[Kind],
    site: Site,
) -> Integrations:
    """Resolve everything that `spec` requests and the cluster serves; `capacity` is None if the
    plan is unknown."""
    gateway = spec.gateway or GatewaySpec()
    cache, scaling = spec.cache.compile, spec.autoscaling
    if scaling is not None and not scaling.moves_replicas:
        scaling = None
    slo = targets_of_role(_slo(spec.slo), options.serving.transfer)
    autoscaling = None
    if scaling is not None:
        autoscaling = _autoscaling(
            scaling, scaling_targets(scaling, options, capacity, slo), served, site
        )
    return Integrations(
        autoscaling=autoscaling,
        endpoint_picker=_endpoint_picker(gateway, site) if INFERENCE_POOL in served else None,
        frontend=_frontend(spec),
        http_route=_http_route(gateway) if HTTP_ROUTE in served else None,
        monitoring=_monitoring(spec.monitoring or MonitoringSpec(), served, site),
        network=_network(spec, site),
        compile_cache_claim=cache.claim if cache else None,
        preflight=spec.accelerator.type == "amd" and bool(spec.accelerator.preflight),
        slo=slo,
        missing=_missing(spec, served),
    )


def first_replicas(spec: AtomDeploymentSpec) -> int:
    """Return the number to start with; an autoscaler then moves it between its bounds."""
    if spec.suspend:
        return 0
    scaling = spec.autoscaling
    if scaling is None:
        return spec.replicas
    return min(max(spec.replicas, scaling.min_replicas or 1), scaling.max_replicas)


def scaling_method(asked: AutoscalingSpec, served: Set[Kind]) -> Literal["KEDA", "HPA"]:
    """Resolve Auto for this cluster. Only KEDA scales to zero."""
    if asked.method is not None and asked.method != "Auto":
        return asked.method
    return "KEDA" if SCALED_OBJECT in served or asked.min_replicas == 0 else "HPA"


def _autoscaling(
    asked: AutoscalingSpec, targets: ScalingTargets, served: Set[Kind], site: Site
) -> Autoscaling:
    prometheus = asked.prometheus
    login = prometheus.authentication_ref if prometheus else None
    cooldown = asked.cooldown_seconds
    return Autoscaling(
        method=scaling_method(asked, served),
        min_replicas=asked.fewest,
        max_replicas=asked.max_replicas,
        pending_replicas=asked.pending_replicas,
        targets=targets,
        cooldown_seconds=_COOLDOWN_SECONDS if cooldown is None else cooldown,
        activation_query=asked.activation_query,
        prometheus_address=prometheus.server_address if prometheus else site.addresses.prometheus,
        authentication=(login.kind or "TriggerAuthentication", login.name) if login else None,
    )


def _slo(asked: SloSpec | None) -> Slo | None:
    if asked is None:
        return None
    percentile = asked.percentile or _SLO_PERCENTILE
    return Slo(_latency_seconds(asked.ttft), _latency_seconds(asked.itl), percentile)


def _latency_seconds(text: str | None) -> float | None:
    """Read a latency of the schema's pattern."""
    if text is None:
        return None
    unit = "ms" if text.endswith("ms") else "s"
    return int(text.removesuffix(unit)) * _SECONDS[unit]


def _endpoint_picker(gateway: GatewaySpec, site: Site) -> EndpointPicker | None:
    picker = gateway.inference_pool
    if picker is None:
        overlay = gateway.picker_template
        ours = EndpointPicker(None, PICKER_PORT, "FailOpen", site.picker, overlay)
        return ours if gateway.prefix_aware else None
    port = picker.port or PICKER_PORT
    return EndpointPicker(picker.name, port, picker.failure_mode or "FailOpen")


def _frontend(spec: AtomDeploymentSpec) -> Frontend | None:
    asked = spec.frontend
    if asked is None:
        return None
    replicas = 0 if spec.suspend else asked.replicas or _FRONTEND_REPLICAS
    return Frontend(
        replicas,
        asked.memory or _FRONTEND_MEMORY,
        is_limited=asked.memory is not None,
        template=asked.template,
    )


def _http_route(gateway: GatewaySpec) -> HttpRoute | None:
    route = gateway.http_route
    if route is None:
        return None
    parents = (ref.model_dump(by_alias=True, exclude_none=True) for ref in route.parent_refs)
    matches = frozenset(route.matches or ("Path", "Header", "All"))
    return HttpRoute(tuple(parents), tuple(route.hostnames or ()), matches)


def _monitoring(asked: MonitoringSpec, served: Set[Kind], site: Site) -> Monitoring:
    monitor, alerts, dashboard = asked.pod_monitor, asked.alerts, asked.dashboard
    pods = None
    if monitor and POD_MONITOR in served:
        pods = PodMonitoring(monitor.labels or {}, monitor.interval or _SCRAPE_INTERVAL)
    return Monitoring(
        pods=pods,
        alerts=(alerts.labels or {}) if alerts and PROMETHEUS_RULE in served else None,
        dashboard=None if dashboard is None else dashboard.labels or {},
        runbooks=site.addresses.runbooks,
    )


def _network(spec: AtomDeploymentSpec, site: Site) -> NetworkAccess | None:
    asked = spec.network_policy
    if asked is None:
        return None
    return NetworkAccess(
        clients=_SAME_NAMESPACE if asked.clients is None else tuple(asked.clients),
        prometheus=_ANY_PROMETHEUS if asked.prometheus is None else tuple(asked.prometheus),
        operator_namespace=site.addresses.operator_namespace,
    )


def _missing(spec: AtomDeploymentSpec, served: Set[Kind]) -> tuple[Missing, ...]:
    """Return the missing kinds that serving does without; autoscalers and groups are refused
    instead."""
    refused = (AUTOSCALER, SCALED_OBJECT, LEADER_WORKER_SET, RESOURCE_CLAIM_TEMPLATE)
    asked = asked_kinds(spec).items()
    return tuple(Missing(k, f) for k, f in asked if k not in served and k not in refused)
