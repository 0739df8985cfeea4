"""AtomDeployments and pods for the operator's tests, with defaults that fit and are valid."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.naming import child_labels
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    Kind,
    Manifest,
    ObjectKey,
    Owner,
    Plan,
)
from atom_operator.integration_values import Site
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.planning import Surroundings, plan_spec
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from atom_operator.validation.parsing import parse_spec
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.merged_fields import copied
from tests.support.operator.status_shown import ABSENT
from tools.tiny_deployment import TINY_CONFIG as TINY_CONFIG
from tools.tiny_deployment import atom_deployment as atom_deployment
from tools.tiny_deployment import spec as spec

KEY = ObjectKey("default", "chat")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IMAGES: dict[Any, str] = {"amd": "registry.test/atom:rocm", "cpu": "registry.test/atom:cpu"}


def parsed(**changes: Any) -> AtomDeploymentSpec:
    """The same, typed; the spec must parse."""
    result = parse_spec(spec(**changes))
    assert isinstance(result, AtomDeploymentSpec), result
    return result


def plan(site: Site | None = None, **changes: Any) -> Plan:
    """The plan of an accepted spec; facts come from its inline config or the catalogue."""
    around = Surroundings(IMAGES, site=site or Site())
    result = plan_spec(Owner(KEY, "uid-of-chat"), parsed(**changes), around)
    assert isinstance(result, Plan), result
    return result


def cluster_with(**changes: Any) -> FakeCluster:
    """A cluster in which the AtomDeployment `chat` was just created."""
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, atom_deployment(**changes))
    return cluster


def reconciler(
    cluster: ClusterPort,
    now: datetime = NOW,
    images: dict[Any, str] | None = None,
    engines: FakeEngines | None = None,
    site: Site | None = None,
) -> Reconciler:
    used = IMAGES if images is None else images
    settings = OperatorSettings(engine_images=used, site=site or Site())
    fleet = FleetReader(cluster, now.timestamp)
    asked = engines or FakeEngines()
    decider = Decider(cluster, fleet, asked, settings)
    return Reconciler(cluster, asked, decider, clock=lambda: now)


def condition(cluster: FakeCluster, kind: str) -> dict[str, Any]:
    """One condition of `chat` as it was last written; ABSENT if the status has none of its type."""
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    (found,) = [item for item in status["conditions"] if item["type"] == kind] or [ABSENT]
    return dict(found)


def ready_records(cluster: FakeCluster) -> list[str]:
    """The names of the records of pods that were all ready."""
    records = cluster.names(CONTROLLER_REVISION)
    return [
        name for name in records if "template" in cluster.find(CONTROLLER_REVISION, name)["data"]
    ]


def gpu_node(name: str, gpus: int = 8, **changes: Any) -> Manifest:
    """A ready node with MI300X devices; `labels` replaces its labels, `resource` what it offers."""
    resource = changes.get("resource", "amd.com/gpu")
    labels = {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.vram": "192G"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": changes.get("labels", labels)},
        "spec": {"taints": changes.get("taints", []), "unschedulable": changes.get("cordoned")},
        "status": {
            "capacity": {resource: str(changes.get("capacity", gpus))},
            "allocatable": {resource: str(gpus)},
            "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
        },
    }


def gpu_pod(name: str, node: str, gpus: int = 1, *, of: str = "other") -> Manifest:
    """A running pod that holds devices; `of` names its AtomDeployment."""
    resources = {"limits": {"amd.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": child_labels(of)},
        "spec": {"nodeName": node, "containers": [{"name": "engine", "resources": resources}]},
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def pod_of(workload: Manifest, name: str, node: str | None = None) -> Manifest:
    """A pod as the workload's controller makes it from its own template; it serves on `node`."""
    spec = workload["spec"]
    group = spec.get("leaderWorkerTemplate") or {}
    template = copied(spec.get("template") or group["leaderTemplate"])
    metadata = {"name": name, "namespace": workload["metadata"]["namespace"]}
    placed = {"nodeName": node} if node is not None else {}
    state = "False" if node is None else "True"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **metadata},
        "spec": {**template["spec"], **placed},
        "status": {
            "phase": "Pending" if node is None else "Running",
            "conditions": [
                {"type": "PodScheduled", "status": state},
                {"type": "Ready", "status": state},
            ],
        },
    }


def unschedulable_pod(
    cluster: FakeCluster, message: str, name: str = "chat-9", *, kind: Kind = DEPLOYMENT
) -> Manifest:
    """A pod of `chat` for which the scheduler finds no node; of a group its leader."""
    pending = pod(cluster, name, ready=False, kind=kind, phase="Pending")
    del pending["spec"]["nodeName"]
    pending["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
    ]
    return pending


def gated_pod(cluster: FakeCluster, name: str = "chat-1", *, queue: str = "models") -> Manifest:
    """A pod of `chat` that a queue does not admit, as Kueue v0.14 leaves it."""
    held = pod(cluster, name, ready=False, phase="Pending")
    del held["spec"]["nodeName"]
    held["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue
    held["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    blocked = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    held["status"]["conditions"] = [{**blocked, "message": "Scheduling is blocked"}]
    return held


def pod(
    cluster: FakeCluster,
    name: str = "chat-1",
    *,
    ready: bool = True,
    kind: Kind = DEPLOYMENT,
    **status: Any,
) -> Manifest:
    """A pod of `chat` on a node, made from its workload's template as that is now."""
    made = pod_of(cluster.find(kind, "chat"), name, "somewhere")
    state = "True" if ready else "False"
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": state},
    ]
    made["status"] = {**made["status"], "conditions": conditions, **status}
    return made
