"""Contour: a controller of the Gateway API, for the one Gateway `edge` of the namespace `contour`.

Its data plane is an Envoy that takes its configuration from here, and that a test starts where
requests are to come in (tests/support/cluster/envoys/contour_gateway.py).
"""

from __future__ import annotations

import json

from devcluster.neighbours.neighbour import Installation, Neighbour, Object, Place, namespace
from devcluster.node import network
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "github.com/projectcontour/contour"
NAMESPACE = "contour"
# No other test names a Gateway so: Contour answers routes that name one of its name without a
# namespace, wherever they are.
GATEWAY = "edge"
CONTROLLER = "projectcontour.io/gateway-controller"
XDS_PORT = 9801
STATS_PORT = 9802  # of Envoy, which listens where it is told to
LISTENER_PORT = 80
ENVOY_PORT = LISTENER_PORT + 8000  # Contour moves every port, so that no Envoy needs to be root
GROUP = Group(
    "contour", MODULE, {"contour": f"{MODULE}/cmd/contour"}, note="about 2 minutes on 2 cores"
)
_NOT_SERVED = ("tlsroutes", "tcproutes", "grpcroutes", "backendtlspolicies")
_API = "gateway.networking.k8s.io"


def install(place: Place) -> Installation:
    config = {"gateway": {"gatewayRef": {"namespace": NAMESPACE, "name": GATEWAY}}}
    argv = (
        str(place.programs["contour"]),
        "serve",
        f"--kubeconfig={place.kubeconfig}",
        f"--config-path={place.folder / 'contour.json'}",
        "--disable-leader-election",
        "--insecure",  # Envoy asks on the loopback interface
        "--xds-address=127.0.0.1",
        f"--xds-port={XDS_PORT}",
        "--stats-address=0.0.0.0",
        f"--stats-port={STATS_PORT}",
        "--http-port=9800",
        "--health-port=9800",
        "--debug-http-port=9803",
        f"--ingress-status-address={network.NODE_ADDRESS}",
        *(f"--disable-feature={name}" for name in _NOT_SERVED),
    )
    # It answers Envoy once it has read the cluster.
    component = Component("contour", argv, ("apiserver",), Probe("tcp", f"127.0.0.1:{XDS_PORT}"))
    return Installation(
        [component],
        [namespace(NAMESPACE), *_gateway()],
        {"contour.json": json.dumps(config, indent=1)},
    )


def _gateway() -> list[Object]:
    """One whose routes may be of every namespace."""
    listener = {
        "name": "http",
        "port": LISTENER_PORT,
        "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    gateway_class = {
        "apiVersion": f"{_API}/v1",
        "kind": "GatewayClass",
        "metadata": {"name": "contour"},
        "spec": {"controllerName": CONTROLLER},
    }
    gateway = {
        "apiVersion": f"{_API}/v1",
        "kind": "Gateway",
        "metadata": {"name": GATEWAY, "namespace": NAMESPACE},
        "spec": {"gatewayClassName": "contour", "listeners": [listener]},
    }
    return [gateway_class, gateway]


CONTOUR = Neighbour(
    "contour",
    GROUP,
    install,
    crds=("examples/contour/01-crds.yaml",),
    upstream_crds=tuple(
        f"{_API}_{kind}" for kind in ("gatewayclasses", "gateways", "httproutes", "referencegrants")
    ),
)
