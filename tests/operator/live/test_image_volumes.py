"""The real API server takes volumes that are images away where it has the feature off."""

from __future__ import annotations

import json

import pytest

from tests.support.cluster.live_cluster import LiveCluster

pytestmark = [pytest.mark.cluster, pytest.mark.side_by_side]


def test_an_api_server_without_the_feature_takes_the_volume_away(namespaced: LiveCluster) -> None:
    """Kubernetes 1.34 has it off: nothing is refused, and the volume is not there. A pod would run
    without its model, so a dry run's answer is read."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "asks"},
        "spec": {
            "containers": [{"name": "engine", "image": "image"}],
            "volumes": [{"name": "models", "image": {"reference": "registry.acme/tiny:v1"}}],
        },
    }
    words = ("create", "--dry-run=server", "--output=json", "--filename=-")
    made = json.loads(namespaced.kubectl(*words, manifest=pod).stdout)
    version = json.loads(namespaced.kubectl("version", "--output=json").stdout)
    minor = int(version["serverVersion"]["minor"].rstrip("+"))
    names = [item["name"] for item in made["spec"].get("volumes", ())]
    assert ("models" in names) is (minor >= 35)
