"""What is kept of a pod is enough to count the devices that it holds, whoever's it is."""

from __future__ import annotations

from typing import Any

import msgspec

from atom_operator.cluster.partial_objects.placed_pods import PlacedPod
from atom_operator.constants import ANNOTATION_REVISION
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.plan.inventory import PodsAsked, survey
from tests.support.operator.builders_operator import KEY, gpu_node, gpu_pod


def shown(pod: dict[str, Any]) -> bytes:
    """As an API server shows it, with much that nobody asks for."""
    pod["metadata"] |= {"uid": "1", "managedFields": [{"manager": "kubelet", "fieldsV1": {}}]}
    pod["spec"] |= {"tolerations": [{"operator": "Exists"}], "priority": 0}
    for container in pod["spec"]["containers"]:
        container["env"] = [{"name": "A", "value": "b"}]
    return msgspec.json.encode(pod)


def test_the_devices_of_pods_count_as_if_they_had_been_read_whole() -> None:
    ours = gpu_pod("ours", "one", 2, of=KEY.name)
    ours["metadata"] |= {
        "annotations": {ANNOTATION_REVISION: "old"},
        "deletionTimestamp": "2026-01-02T03:04:05Z",
    }
    steps = gpu_pod("steps", "two", 1)
    steps["spec"]["initContainers"] = [
        {"name": "warm", "resources": {"limits": {"amd.com/gpu": "4"}}},
        {
            "name": "side",
            "restartPolicy": "Always",
            "resources": {"limits": {"amd.com/gpu": "1"}},
        },
    ]
    bare = gpu_pod("bare", "two", 1)
    del bare["spec"]["containers"][0]["resources"]
    pods = [ours, steps, bare]
    nodes = [gpu_node("one"), gpu_node("two")]
    asked = PodsAsked(KEY, "amd.com/gpu", ours["spec"], "new")
    expected = survey(nodes, placed_pods(pods), asked)
    assert [node.free for node in expected.nodes] == [6, 4]
    kept = [msgspec.json.decode(shown(pod), type=PlacedPod).manifest() for pod in pods]
    assert survey(nodes, placed_pods(kept), asked) == expected
    assert "tolerations" not in kept[0]["spec"]
