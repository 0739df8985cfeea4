"""cert-manager's controllers for issuers and certificates, and its CA injector."""

from __future__ import annotations

from devcluster.neighbours.neighbour import Installation, Neighbour, Place, namespace
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

GROUP = Group(
    "cert-manager",
    "github.com/cert-manager/cert-manager",
    {"cert-manager": "."},
    note="about 3 minutes on 2 cores",
)


def install(place: Place) -> Installation:
    argv = place.started_with({}, str(place.programs["cert-manager"]))
    probe = Probe("tcp", "127.0.0.1:9740")
    return Installation(
        [Component("cert-manager", argv, ("apiserver",), probe)], [namespace("cert-manager")]
    )


CERT_MANAGER = Neighbour("cert-manager", GROUP, install, crds=("deploy/crds/*.yaml",))
