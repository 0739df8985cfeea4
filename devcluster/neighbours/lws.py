"""LeaderWorkerSet: groups of pods over several nodes."""

from __future__ import annotations

import json

from devcluster.neighbours.neighbour import Installation, Neighbour, Place, namespace
from devcluster.neighbours.webhooks import only_pods_with, reached_by_url
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "sigs.k8s.io/lws"
WEBHOOK_PORT = 9543
GROUP = Group("lws", MODULE, {"lws-manager": f"{MODULE}/cmd"}, note="about 3 minutes on 2 cores")


def install(place: Place) -> Installation:
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": WEBHOOK_PORT, "certDir": str(place.certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "127.0.0.1:9540"},
    }
    # Upstream's kustomize patches choose the pods of groups by this label.
    webhooks = only_pods_with(
        "leaderworkerset.sigs.k8s.io/name", place.manifests("config/webhook/manifests.yaml")
    )
    manager = place.started_with(
        {"NAMESPACE": "lws-system"},
        str(place.programs["lws-manager"]),
        f"--config={place.folder / 'config.json'}",
    )
    return Installation(
        [Component("lws", manager, ("apiserver",), Probe("tcp", f"127.0.0.1:{WEBHOOK_PORT}"))],
        [namespace("lws-system"), *reached_by_url(webhooks, place, "lws", WEBHOOK_PORT)],
        {"config.json": json.dumps(config, indent=1)},
    )


LWS = Neighbour("lws", GROUP, install, crds=("config/crd/bases/*.yaml",))
