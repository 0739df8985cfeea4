"""KEDA: its operator, and the adapter that answers the API server for external metrics."""

from __future__ import annotations

from devcluster.neighbours.neighbour import Installation, Neighbour, Object, Place, namespace
from devcluster.node import network
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "github.com/kedacore/keda/v2"
NAMESPACE = "keda"
SERVICE = "keda-metrics-apiserver"
GRPC = "127.0.0.1:9666"
ADAPTER_PORT = 9643
GROUP = Group(
    "keda",
    MODULE,
    {"keda-operator": f"{MODULE}/cmd/operator", "keda-adapter": f"{MODULE}/cmd/adapter"},
    note="about 5 minutes on 2 cores",
)
ENVIRONMENT = {"POD_NAMESPACE": NAMESPACE, "WATCH_NAMESPACE": ""}  # "" is all of them
_METADATA = {"name": SERVICE, "namespace": NAMESPACE}


def install(place: Place) -> Installation:
    rights = place.manifests(
        "config/metrics-server/role.yaml", "config/metrics-server/role_binding.yaml"
    )
    return Installation(
        [_operator(place), _adapter(place)],
        [namespace(NAMESPACE), *rights, *_service(), _api_service(place)],
    )


def _operator(place: Place) -> Component:
    argv = place.started_with(
        {**ENVIRONMENT, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE},
        str(place.programs["keda-operator"]),
        f"--cert-dir={place.certificates}",
        f"--metrics-service-bind-address={GRPC}",
        "--metrics-bind-address=127.0.0.1:9640",
        "--health-probe-bind-address=127.0.0.1:9641",
        "--enable-webhook-patching=false",
        "--zap-encoder=console",
    )
    return Component("keda-operator", argv, ("apiserver",), Probe("tcp", GRPC))


def _adapter(place: Place) -> Component:
    clients = [
        f"--{kind}-kubeconfig={place.kubeconfig}"
        for kind in ("lister", "authentication", "authorization")
    ]
    argv = place.started_with(
        ENVIRONMENT,
        str(place.programs["keda-adapter"]),
        f"--secure-port={ADAPTER_PORT}",
        "--port=9642",
        f"--metrics-service-address={GRPC}",
        f"--cert-dir={place.certificates}",
        f"--tls-cert-file={place.certificates}/tls.crt",
        f"--tls-private-key-file={place.certificates}/tls.key",
        *clients,
    )
    # It ends when the operator does not answer it soon.
    probe = Probe("https", f"https://127.0.0.1:{ADAPTER_PORT}/readyz")
    return Component("keda-adapter", argv, ("apiserver", "keda-operator"), probe)


def _service() -> list[Object]:
    """A Service without pods: the adapter is a process of the node."""
    addressed = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**_METADATA, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.NODE_ADDRESS]}],
        "ports": [{"name": "https", "port": ADAPTER_PORT, "protocol": "TCP"}],
    }
    ports = [{"name": "https", "port": 443, "targetPort": ADAPTER_PORT}]
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": _METADATA, "spec": {"ports": ports}},
        addressed,
    ]


def _api_service(place: Place) -> Object:
    spec = {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": _METADATA,
        "caBundle": place.authority,
    }
    metadata = {"name": "v1beta1.external.metrics.k8s.io"}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": metadata,
        "spec": spec,
    }


KEDA = Neighbour(
    "keda",
    GROUP,
    install,
    crds=("config/crd/bases/*.yaml",),
    server_names=(f"{SERVICE}.{NAMESPACE}.svc",),
)
