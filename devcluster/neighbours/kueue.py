"""Kueue: quotas over pods that name a queue."""

from __future__ import annotations

import json

from devcluster.neighbours.neighbour import Installation, Neighbour, Object, Place, namespace
from devcluster.neighbours.webhooks import only_pods_with, reached_by_url
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "sigs.k8s.io/kueue"
NAMESPACE = "kueue-system"
WEBHOOK_PORT = 9743
# The manager takes the certificate of its metrics from this place alone, and wants one where it
# serves none. So it gets an /etc of its own, in which there is nothing else.
_WITH_CERTIFICATES = (
    "mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics && "
    'ln -s "$1" /etc/kueue/metrics/certs && shift && exec "$@"'
)
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP = Group(
    "kueue", MODULE, {"kueue-manager": f"{MODULE}/cmd/kueue"}, note="about 2 minutes on 2 cores"
)


def install(place: Place) -> Installation:
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": WEBHOOK_PORT, "certDir": str(place.certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "127.0.0.1:9742"},
        "integrations": {"frameworks": ["pod"]},
    }
    webhooks = [_ours(one) for one in place.manifests("config/components/webhook/manifests.yaml")]
    reached = reached_by_url(only_pods_with(QUEUE_LABEL, webhooks), place, "kueue", WEBHOOK_PORT)
    manager = place.started_with(
        {},
        *("unshare", "--mount", "sh", "-c", _WITH_CERTIFICATES, "kueue", str(place.certificates)),
        str(place.programs["kueue-manager"]),
        f"--config={place.folder / 'config.json'}",
        "--feature-gates=VisibilityOnDemand=false",
    )
    return Installation(
        [Component("kueue", manager, ("apiserver",), Probe("tcp", f"127.0.0.1:{WEBHOOK_PORT}"))],
        [namespace(NAMESPACE), *reached],
        {"config.json": json.dumps(config, indent=1)},
    )


def _ours(configuration: Object) -> Object:
    """Drop the webhooks of frameworks that are not configured: no Job shall wait for Kueue."""

    def kept(rule: Object) -> bool:
        return "kueue.x-k8s.io" in rule["apiGroups"] or "pods" in rule["resources"]

    hooks = [hook for hook in configuration["webhooks"] if any(map(kept, hook["rules"]))]
    return {**configuration, "webhooks": hooks}


KUEUE = Neighbour("kueue", GROUP, install, crds=("config/components/crd/bases/*.yaml",))
