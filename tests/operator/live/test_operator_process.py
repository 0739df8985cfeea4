"""The operator as a process against a real API server: create, drift, crash, scale, delete.

Pods need not start here (their image does not exist); what they do is the end-to-end tests' matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_IMAGE = "localhost/atom-none:0"
_CHILDREN = (
    ("deployment", "chat"),
    ("service", "chat"),
    ("serviceaccount", "chat"),
    ("configmap", "chat-plan"),
    ("pdb", "chat"),
)

_QUIET = [child for child in _CHILDREN if child[0] in ("service", "serviceaccount", "pdb")]


def apply(cluster: LiveCluster, **changes: Any) -> None:
    # The image is named, so that another operator in the cluster would render the same.
    manifest = atom_deployment(**{"engine": {"image": _IMAGE}, **changes})
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def condition(cluster: LiveCluster, kind: str) -> dict[str, Any] | None:
    found = cluster.get("atomd", "chat")
    conditions = ((found or {}).get("status") or {}).get("conditions", ())
    return next((item for item in conditions if item["type"] == kind), None)


def all_children_exist(cluster: LiveCluster) -> bool:
    return all(cluster.get(kind, name) for kind, name in _CHILDREN)


def test_children_are_made_kept_and_removed(namespaced: LiveCluster, tmp_path: Path) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster, replicas=2)
        cluster.wait("complete set of children", lambda: all_children_exist(cluster))

        cluster.kubectl("delete", "service", "chat")
        cluster.wait("service that came back", lambda: cluster.get("service", "chat"))
        patch = '{"spec":{"replicas":7}}'
        cluster.kubectl("patch", "deployment", "chat", "--type=merge", "--patch", patch)
        cluster.wait(
            "repair of replicas",
            lambda: (cluster.get("deployment", "chat") or {})["spec"]["replicas"] == 2,
        )

        cluster.kubectl("scale", "atomd/chat", "--replicas=1")
        cluster.wait("prune of the budget", lambda: cluster.get("pdb", "chat") is None)

        parent = cluster.get("atomd", "chat")
        assert parent is not None
        assert "finalizers" not in parent["metadata"]
        assert list(parent["metadata"]["annotations"]) == [
            "kubectl.kubernetes.io/last-applied-configuration"
        ]

        cluster.kubectl("delete", "atomd", "chat", "--timeout=20s")
        cluster.wait(
            "removal of the children",
            lambda: not any(cluster.get(kind, name) for kind, name in _CHILDREN),
        )


def test_a_killed_operator_leaves_nothing_that_its_successor_does_not_finish(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"
    with operator(cluster, log) as process:
        apply(cluster, replicas=2)
        cluster.wait("first child", lambda: cluster.get("serviceaccount", "chat"))
        process.kill()
        process.wait()
    cluster.kubectl("delete", "configmap", "chat-plan", "--ignore-not-found")
    cluster.kubectl("scale", "atomd/chat", "--replicas=3")
    with operator(cluster, log):
        cluster.wait("complete set of children", lambda: all_children_exist(cluster))
        cluster.wait(
            "new number of replicas",
            lambda: (cluster.get("deployment", "chat") or {})["spec"]["replicas"] == 3,
        )


def test_a_restart_and_a_second_apply_change_no_object(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"

    def state() -> dict[str, str]:
        # Of the Deployment and the AtomDeployment only the spec's version: their status moves with
        # the pods, which try to start all the while.
        found = {(kind, name): cluster.get(kind, name) for kind, name in _QUIET}
        versions = {
            kind: item["metadata"]["resourceVersion"] for (kind, _), item in found.items() if item
        }
        for kind in ("deployment", "atomd"):
            versions[kind] = str((cluster.get(kind, "chat") or {})["metadata"]["generation"])
        return versions

    with operator(cluster, log):
        apply(cluster, replicas=2)
        cluster.wait("complete set of children", lambda: all_children_exist(cluster))
        cluster.wait("status", lambda: condition(cluster, "Ready"))
    before = state()
    with operator(cluster, log):
        apply(cluster, replicas=2)
        # The successor has reconciled when it has repaired this.
        cluster.kubectl("delete", "configmap", "chat-plan")
        cluster.wait("plan that came back", lambda: cluster.get("configmap", "chat-plan"))
    assert state() == before


def test_what_only_the_operator_can_know_becomes_a_condition(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        accelerator = {"type": "amd", "product": "MI210"}
        apply(
            cluster,
            model={"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
            accelerator=accelerator,
            engine={"image": _IMAGE},
        )
        fits = cluster.wait("verdict", lambda: condition(cluster, "CapacityFits"))
        assert (fits["status"], fits["reason"]) == ("False", "WeightsDoNotFit")
        assert cluster.get("deployment", "chat") is None

        overlay = {"spec": {"containers": [{"name": "engine", "ports": [{"containerPort": -1}]}]}}
        apply(cluster, template=overlay)
        refused = cluster.wait("refusal of a value", lambda: _refusal(cluster, "containerPort"))
        assert "-1" in refused
        assert cluster.get("deployment", "chat") is None
        apply(cluster, template={"spec": {"noSuchField": 1}})
        cluster.wait("refusal of a field", lambda: _refusal(cluster, "noSuchField"))


def _refusal(cluster: LiveCluster, words: str) -> str | None:
    """What the API server says of the pods, asked before any child is written."""
    found = condition(cluster, "Accepted") or {}
    message = str(found.get("message"))
    return message if found.get("reason") == "InvalidSpec" and words in message else None
