"""ClusterLife: what goes on in a cluster beside the operator, one step at a time, on a FakeCluster.

Plays the controller of Deployments (rolling updates with their bounds, Recreate, the deadline), the
scheduler (devices of nodes), the kubelet (a pod serves one step after it has a node; one whose
image is bad ends again and again) and an autoscaler. Deterministic: who acts when is the test's
choice.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from atom_operator import constants
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD, SERVICE, Manifest
from atom_operator.kinds import AUTOSCALER
from tests.support.builders_operator import gpu_node, pod
from tests.support.fake_cluster import FakeCluster

NAME = "chat"
BAD = "bad"  # in the name of an image that cannot serve
_KEY = ("default", NAME)
_DEADLINE_STEPS = 8
_MOST_RESTARTS = 6  # the pauses between them grow
_DEVICE = "amd.com/gpu"


@dataclass
class ClusterLife:
    """`cluster` with `nodes` of so many devices each; without any, pods need none."""

    cluster: FakeCluster
    nodes: dict[str, int] = field(default_factory=dict)
    quota: int | None = None  # of pods that may have a node; None is no quota
    lost: set[str] = field(default_factory=set)
    made: int = 0
    idle_steps: int = 0
    seen: Any = None

    def __post_init__(self) -> None:
        self._show_nodes()

    # --- what is there -----------------------------------------------------------------------

    @property
    def deployment(self) -> Manifest | None:
        return self.cluster.objects.get((DEPLOYMENT, *_KEY))

    @property
    def pods(self) -> list[Manifest]:
        """Those that do not end."""
        found = [item for (kind, _, _), item in self.cluster.objects.items() if kind == POD]
        return [item for item in found if not item["metadata"].get("deletionTimestamp")]

    @property
    def serving(self) -> list[Manifest]:
        """Pods that are ready and that the Service leads to."""
        service = self.cluster.objects.get((SERVICE, *_KEY))
        wanted = service["spec"]["selector"].items() if service else {("no", "service")}
        ready = [item for item in self.pods if is_ready(item)]
        return [item for item in ready if wanted <= item["metadata"]["labels"].items()]

    # --- what others do ----------------------------------------------------------------------

    def autoscale(self, replicas: int) -> None:
        """The autoscaler moves the number between its bounds, and owns it from then on."""
        scaler, stored = self.cluster.objects.get((AUTOSCALER, *_KEY)), self.deployment
        if scaler is None or stored is None or not stored["spec"]["replicas"]:
            return
        bounds = scaler["spec"]
        number = min(max(replicas, bounds["minReplicas"]), bounds["maxReplicas"])
        key = (DEPLOYMENT, *_KEY)
        self.cluster.owned_fields.pop((key, constants.HANDOVER_MANAGER), None)
        self.cluster.owned_fields[key, "autoscaler"] = {("spec", "replicas")}
        if number != stored["spec"]["replicas"]:
            self.cluster.change_spec(DEPLOYMENT, NAME, replicas=number)

    def lose_node(self, name: str) -> None:
        """Its pods serve no more; with the next step they are replaced."""
        self.lost.add(name)
        self._show_nodes()
        for item in self.pods:
            if item["spec"].get("nodeName") == name:
                _set_ready(item, ready=False)

    def return_node(self, name: str) -> None:
        self.lost.discard(name)
        self._show_nodes()

    def render_otherwise(self) -> None:
        """The operator was replaced by a version that renders pods otherwise: what runs is what the
        old one made."""
        stored = self.deployment
        if stored is None:
            return
        annotations = stored["metadata"]["annotations"]
        old = annotations[constants.ANNOTATION_REVISION]
        new = f"o{old[:11]}"
        for item in self.cluster.objects.values():
            template = (item.get("data") or {}).get("template")
            made = item if template is None else template
            _rename(item, old, new)
            _rename(made, old, new)
            if item is stored:
                _rename(item["spec"]["template"], old, new)
                _age(item["spec"]["template"])
            elif template is not None and _revision(template) == new:
                _age(template)
        self.cluster.touch(stored)

    def delete(self, kind: Any) -> None:
        """Somebody deletes a child; of a workload the pods go too."""
        self.cluster.objects.pop((kind, *_KEY), None)
        if kind == DEPLOYMENT:
            for item in self.pods:
                del self.cluster.objects[POD, "default", item["metadata"]["name"]]

    # --- one step of the controllers ---------------------------------------------------------

    def step(self) -> None:
        """Kubelets, then the scheduler, then the controller of Deployments and its report."""
        self._end_pods()
        self._run_pods()
        stored = self.deployment
        if stored is None:
            return
        self._replace_pods(stored)
        self._schedule()
        self._report(stored)

    def _end_pods(self) -> None:
        for key, item in list(self.cluster.objects.items()):
            if key[0] == POD and item["metadata"].get("deletionTimestamp"):
                del self.cluster.objects[key]
        for item in self.pods:
            if item["spec"].get("nodeName") in self.lost:
                item["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"

    def _run_pods(self) -> None:
        for item in self.pods:
            if item["spec"].get("nodeName"):
                bad = BAD in _image(item)
                _set_ready(item, ready=not bad)
                if bad:
                    _crash(item)

    def _replace_pods(self, stored: Manifest) -> None:
        spec, wanted = stored["spec"], stored["spec"]["replicas"]
        revision = _revision(spec["template"])
        old = [item for item in self.pods if _revision(item) != revision]
        new = [item for item in self.pods if _revision(item) == revision]
        if spec["strategy"]["type"] == "Recreate" and old:
            self._remove(old)
            return
        steps = spec["strategy"].get("rollingUpdate") or {"maxSurge": 0, "maxUnavailable": 0}
        surge = steps["maxSurge"] if old else 0
        for _ in range(min(wanted - len(new), wanted + surge - len(old) - len(new))):
            self._make(spec["template"])
        self._remove([item for item in old if not is_ready(item)])
        ready = sum(map(is_ready, self.pods))
        spare = ready - (wanted - (steps["maxUnavailable"] if old else 0))
        self._remove([item for item in old if is_ready(item)][: max(0, spare)])
        surplus = len([item for item in new if item in self.pods]) - wanted
        self._remove(sorted(new, key=is_ready)[: max(0, surplus)])

    def _make(self, template: Manifest) -> None:
        self.made += 1
        item = pod(f"{NAME}-{self.made}", ready=False)
        item["metadata"]["labels"] = dict(template["metadata"]["labels"])
        item["metadata"]["annotations"] = dict(template["metadata"]["annotations"])
        item["spec"] = copy.deepcopy(template["spec"])
        _set_scheduled(item, None)
        self.cluster.put_pod(item)

    def _remove(self, pods: list[Manifest]) -> None:
        for item in pods:
            self.cluster.objects.pop((POD, "default", item["metadata"]["name"]), None)

    def _schedule(self) -> None:
        for item in self.pods:
            if item["spec"].get("nodeName"):
                continue
            admitted = sum(1 for other in self.pods if other["spec"].get("nodeName"))
            if self.quota is None or admitted < self.quota:
                item["spec"].pop("schedulingGates", None)
                _set_scheduled(item, self._place())
            else:
                _gate(item)

    def _place(self) -> str | None:
        if not self.nodes:
            return "any"
        for name, devices in self.nodes.items():
            used = sum(item["spec"].get("nodeName") == name for item in self.pods)
            if name not in self.lost and used < devices:
                return name
        return None

    def _report(self, stored: Manifest) -> None:
        revision = _revision(stored["spec"]["template"])
        updated = [item for item in self.pods if _revision(item) == revision]
        wanted, ready = stored["spec"]["replicas"], sum(map(is_ready, self.pods))
        done = len(self.pods) == len(updated) == ready == wanted
        progress = (revision, wanted, len(self.pods), sum(map(is_ready, updated)))
        self.idle_steps = 0 if done or progress != self.seen else self.idle_steps + 1
        self.seen = progress
        status: dict[str, Any] = {
            "observedGeneration": stored["metadata"]["generation"],
            "replicas": len(self.pods),
            "updatedReplicas": len(updated),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if self.idle_steps >= _DEADLINE_STEPS:
            late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
            status["conditions"] = [{**late, "message": "timed out progressing"}]
        if stored.get("status") != status:
            stored["status"] = status
            self.cluster.touch(stored)

    def _show_nodes(self) -> None:
        self.cluster.nodes = [
            gpu_node(name, devices, ready="False" if name in self.lost else "True")
            for name, devices in self.nodes.items()
        ]


def is_ready(item: Manifest) -> bool:
    """Whether a pod serves."""
    states = {one["type"]: one["status"] for one in item["status"]["conditions"]}
    return states.get("Ready") == "True"


def _set_ready(item: Manifest, *, ready: bool) -> None:
    kept = [one for one in item["status"]["conditions"] if one["type"] != "Ready"]
    item["status"]["conditions"] = [
        *kept,
        {"type": "Ready", "status": "True" if ready else "False"},
    ]


def _set_scheduled(item: Manifest, node: str | None) -> None:
    words = f"0/2 nodes are available: 2 Insufficient {_DEVICE}."
    found: dict[str, Any] = {"type": "PodScheduled", "status": "True"}
    if node is None:
        found |= {"status": "False", "reason": "Unschedulable", "message": words}
    else:
        item["spec"]["nodeName"] = node
    kept = [one for one in item["status"]["conditions"] if one["type"] != "PodScheduled"]
    item["status"]["conditions"] = [*kept, found]


def _gate(item: Manifest) -> None:
    """As a controller of quotas makes a pod that it does not admit."""
    item["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    kept = [one for one in item["status"]["conditions"] if one["type"] != "PodScheduled"]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    item["status"]["conditions"] = [*kept, gated]


def _crash(item: Manifest) -> None:
    (before,) = item["status"].get("containerStatuses") or [{"restartCount": 0}]
    ended = {"reason": "Error", "exitCode": 1, "message": "no such model"}
    item["status"]["containerStatuses"] = [
        {
            "name": "engine",
            "ready": False,
            "restartCount": min(before["restartCount"] + 1, _MOST_RESTARTS),
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": ended},
        }
    ]


def _image(item: Manifest) -> str:
    return str(item["spec"]["containers"][0]["image"])


def _revision(item: Manifest) -> str:
    return str(item["metadata"]["annotations"][constants.ANNOTATION_REVISION])


def _rename(item: Manifest, old: str, new: str) -> None:
    annotations = item["metadata"].get("annotations") or {}
    for name in (constants.ANNOTATION_REVISION, constants.ANNOTATION_FAILED_REVISION):
        if annotations.get(name) == old:
            annotations[name] = new


def _age(template: Manifest) -> None:
    template["spec"]["containers"][0]["args"].append("--of-an-older-time")


def parent_of(cluster: FakeCluster) -> Manifest:
    """The AtomDeployment itself."""
    return cluster.find(ATOM_DEPLOYMENT, NAME)
