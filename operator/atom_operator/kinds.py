"""The API server's names of kinds of objects, and the kinds that only some clusters serve.

Knows no object. The core kinds that every AtomDeployment has are in domain/objects.py.
"""

from __future__ import annotations

from typing import NamedTuple

from atom_operator import constants


class Kind(NamedTuple):
    """Name a kind of object as the API server does."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


# Also a child: a canary is a separate AtomDeployment.
ATOM_DEPLOYMENT = Kind(constants.GROUP, constants.VERSION, constants.KIND, constants.PLURAL)
AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
INFERENCE_POOL = Kind("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools")
GATEWAY = Kind("gateway.networking.k8s.io", "v1", "Gateway", "gateways")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
POD_MONITOR = Kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULE = Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules")
# Kueue's record of one pod that waits for a quota; only read.
QUOTA_WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "Workload", "workloads")
# Of the controller of Deployments; its annotations are renewed where that is stuck.
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
# Only made, never read: the one by which servers of an AtomDeployment know each other.
SECRET = Kind("", "v1", "Secret", "secrets")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
RESOURCE_CLAIM_TEMPLATE = Kind(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)
# Of drivers and schedulers; only read.
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")

# Children that exist only where a spec asks for them, most of them of other projects' CRDs.
OPTIONAL_KINDS = (
    NETWORK_POLICY,
    ROLE,
    ROLE_BINDING,
    RESOURCE_CLAIM_TEMPLATE,
    INFERENCE_POOL,
    HTTP_ROUTE,
    POD_MONITOR,
    PROMETHEUS_RULE,
    LEADER_WORKER_SET,
    AUTOSCALER,
    SCALED_OBJECT,
    ATOM_DEPLOYMENT,
)
AUTOSCALER_KINDS = frozenset({AUTOSCALER, SCALED_OBJECT})
# Serving does not need these: a refusal of one is reported and stops nothing.
SIDE_KINDS = frozenset(
    {
        INFERENCE_POOL,
        HTTP_ROUTE,
        POD_MONITOR,
        PROMETHEUS_RULE,
        AUTOSCALER,
        SCALED_OBJECT,
        ROLE,
        ROLE_BINDING,
        ATOM_DEPLOYMENT,
    }
)
# What an object of a kind points to, where both are asked for.
NEEDED_KINDS = {HTTP_ROUTE: INFERENCE_POOL}
# Where a user gets a kind that their cluster lacks.
PROVIDERS = {
    SCALED_OBJECT: "KEDA (https://keda.sh)",
    RESOURCE_CLAIM_TEMPLATE: "Kubernetes 1.34 or newer, or its feature DynamicResourceAllocation",
    LEADER_WORKER_SET: "LeaderWorkerSet (https://lws.sigs.k8s.io)",
    INFERENCE_POOL: "the Gateway API Inference Extension"
    " (https://gateway-api-inference-extension.sigs.k8s.io)",
    HTTP_ROUTE: "the Gateway API (https://gateway-api.sigs.k8s.io)",
    POD_MONITOR: "the Prometheus operator (https://prometheus-operator.dev)",
    PROMETHEUS_RULE: "the Prometheus operator (https://prometheus-operator.dev)",
}
