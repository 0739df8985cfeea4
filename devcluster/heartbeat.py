"""Keeps created fake nodes alive: renews the lease of every node that carries the fake label.

Run by the supervisor as the component `fake-nodes`. Without it the node lifecycle controller would
turn such nodes NotReady after 40 seconds, because no kubelet stands behind them. Does nothing for
nodes with a kubelet.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from devcluster.api import Api, ApiError
from devcluster.fake_nodes.amd import FAKE_LABEL
from devcluster.node import network

INTERVAL_SECONDS = 10.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def renew_all(api: Api, now: datetime) -> int:
    """Return how many leases were renewed."""
    nodes = api.get(f"/api/v1/nodes?labelSelector={FAKE_LABEL}%3Dtrue")["items"]
    for node in nodes:
        name = node["metadata"]["name"]
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        api.apply(f"{LEASES}/{name}", lease)
    return len(nodes)


def main() -> None:
    api = Api(f"https://127.0.0.1:{network.API_PORT}", Path(sys.argv[1]) / "pki")
    while True:
        try:
            renew_all(api, datetime.now(UTC))
        except ApiError as error:
            print(error, flush=True)
        time.sleep(INTERVAL_SECONDS)


if __name__ == "__main__":
    main()
