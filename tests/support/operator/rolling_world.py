"""A small world in which a rollout takes place: nodes that fill up, a quota, and who plays by them.

Plays the Deployment's controller, the scheduler and the quota on the pods of `chat`, made from the
Deployment's own template. What a pod takes is summed here, apart from the operator's own sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom_operator.constants import ANNOTATION_REVISION
from atom_operator.domain import DEPLOYMENT, POD, Manifest
from atom_operator.integration_values import Site
from tests.support.operator.builders_operator import KEY, gpu_node, reconciler
from tests.support.operator.fake_cluster import FakeCluster

# Which allows host ports.
_SITE = Site(template_forbidden=frozenset())
HOST_PORT, APART = "hostPort", "podAntiAffinity"
_UNITS = {"Gi": 2**30, "Mi": 2**20}
_WORDS = {
    HOST_PORT: "node(s) didn't have free ports for the requested pod ports",
    APART: "node(s) didn't match pod anti-affinity rules",
    "pods": "Too many pods",
}


@dataclass
class RollingWorld:
    """`offers`: what each node has, by resource; `quota`: hard limits of the namespace."""

    cluster: FakeCluster
    offers: Mapping[str, Mapping[str, float]]
    quota: Mapping[str, float] = field(default_factory=dict)
    one_pod_claim: str | None = None  # that one pod at a time can mount
    least_serving: int = 10**6
    strategies: list[str] = field(default_factory=list)
    _made: int = 0

    async def settle(self, rounds: int = 40) -> bool:
        """Let everybody act in turn until all pods are of the wanted revision and ready."""
        for _ in range(rounds):
            await reconciler(self.cluster, site=_SITE).reconcile(KEY)
            rollout = self.cluster.find(DEPLOYMENT, "chat")["spec"]["strategy"]
            self.strategies.append(_strategy(rollout))
            self._control(rollout)
            self._schedule()
            self._tell()
            self.least_serving = min(self.least_serving, sum(map(_is_ready, self.pods())))
            if self.is_done():
                await reconciler(self.cluster, site=_SITE).reconcile(KEY)
                return True
        return False

    def is_done(self) -> bool:
        old, new = self._by_revision()
        return not old and len(new) == self._wanted() and all(map(_is_ready, new))

    def pods(self) -> list[Manifest]:
        return [item for key, item in self.cluster.objects.items() if key[0] == POD]

    # --- who acts ----------------------------------------------------------------------------

    def _control(self, rollout: Manifest) -> None:
        """The Deployment's controller: no more pods than it may, no fewer that serve."""
        old, new = self._by_revision()
        wanted = self._wanted()
        if rollout["type"] == "Recreate":
            for pod in old:
                self._delete(pod)
            if not old:
                self._create(wanted - len(new))
            return
        steps = rollout["rollingUpdate"]
        self._create(min(wanted - len(new), wanted + steps["maxSurge"] - len(old) - len(new)))
        least = wanted - steps["maxUnavailable"]
        for pod in sorted(old, key=_is_ready):
            serving = sum(map(_is_ready, self.pods()))
            if not _is_ready(pod) or serving > least:
                self._delete(pod)

    def _create(self, number: int) -> None:
        self._refused = ""
        for _ in range(max(0, number)):
            template = self.cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
            words = self._over_quota(template["spec"])
            if words:
                self._refused = words
                return
            self._made += 1
            metadata = {**template["metadata"], "name": f"chat-{self._made}"}
            spec = {**template["spec"]}
            self.cluster.put_pod(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**metadata, "namespace": "default"},
                    "spec": spec,
                    "status": {"phase": "Pending", "conditions": []},
                }
            )

    def _over_quota(self, spec: Manifest) -> str:
        asked = _counted(spec)
        for name, limit in self.quota.items():
            used = sum(_counted(pod["spec"])[name] for pod in self.pods())
            if used + asked[name] > limit:
                return (
                    f"exceeded quota: one, requested: {name}={_quantity(asked[name])}, "
                    f"used: {name}={_quantity(used)}, limited: {name}={_quantity(limit)}"
                )
        return ""

    def _schedule(self) -> None:
        for pod in self.pods():
            if pod["spec"].get("nodeName"):
                continue
            lacks = {node: self._lacks(node, pod) for node in self.offers}
            node = next((name for name, short in lacks.items() if not short), None)
            if node is not None:
                pod["spec"] = {**pod["spec"], "nodeName": node}
                pod["status"] = {
                    "phase": "Running",
                    "conditions": [
                        {"type": "PodScheduled", "status": "True"},
                        {"type": "Ready", "status": "True"},
                    ],
                }
                continue
            short = sorted({word for words in lacks.values() for word in words})
            message = f"0/{len(lacks)} nodes are available: {', '.join(short)}."
            unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [{**unscheduled, "message": message}]

    def _lacks(self, node: str, pod: Manifest) -> list[str]:
        there = [item for item in self.pods() if item["spec"].get("nodeName") == node]
        short = []
        for name, needed in _takes(pod["spec"]).items():
            offered = 1 if name in (HOST_PORT, APART) else self.offers[node].get(name, 0)
            if sum(_takes(item["spec"]).get(name, 0) for item in there) + needed > offered:
                short.append(f"1 {_WORDS.get(name, f'Insufficient {name}')}")
        placed = [item for item in self.pods() if item["spec"].get("nodeName")]
        if self.one_pod_claim and placed:
            short.append("1 node has pod using PersistentVolumeClaim with ReadWriteOncePod")
        return short

    def _tell(self) -> None:
        old, new = self._by_revision()
        stored = self.cluster.find(DEPLOYMENT, "chat")
        ready = sum(map(_is_ready, [*old, *new]))
        stored["status"] = {
            "observedGeneration": stored["metadata"]["generation"],
            "replicas": len(old) + len(new),
            "updatedReplicas": len(new),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [],
        }
        if self._refused:
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
            message = f'pods "chat-x" is forbidden: {self._refused}'
            stored["status"]["conditions"] = [{**failure, "message": message}]
        self.cluster.touch(stored)

    def _delete(self, pod: Manifest) -> None:
        del self.cluster.objects[POD, "default", pod["metadata"]["name"]]

    def _wanted(self) -> int:
        return int(self.cluster.find(DEPLOYMENT, "chat")["spec"]["replicas"])

    def _by_revision(self) -> tuple[list[Manifest], list[Manifest]]:
        template = self.cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
        wanted = template["metadata"]["annotations"][ANNOTATION_REVISION]
        pods = self.pods()
        new = [p for p in pods if p["metadata"]["annotations"][ANNOTATION_REVISION] == wanted]
        return [pod for pod in pods if pod not in new], new


def node_of(name: str, offered: Mapping[str, float], **changes: Any) -> Manifest:
    """A node that offers this and plenty of anything else."""
    node = gpu_node(name, **changes)
    plenty = {"cpu": "4k", "memory": "100Ti", "ephemeral-storage": "100Ti", "pods": "110"}
    told = {resource: f"{amount:.0f}" for resource, amount in offered.items()}
    node["status"]["allocatable"] = {**plenty, **told}
    node["status"]["capacity"] = dict(node["status"]["allocatable"])
    return node


def _strategy(rollout: Manifest) -> str:
    if rollout["type"] == "Recreate":
        return "Recreate"
    return "Surge" if rollout["rollingUpdate"]["maxSurge"] else "InPlace"


def _is_ready(pod: Manifest) -> bool:
    return any(c["type"] == "Ready" for c in pod["status"]["conditions"])


def _takes(spec: Manifest) -> dict[str, float]:
    """What a pod takes of a node, of what the worlds of the tests are short of."""
    (engine,) = [item for item in spec["containers"] if item["name"] == "engine"]
    resources = engine["resources"]
    both = {**resources.get("limits", {}), **resources.get("requests", {})}
    taken = {name: _number(str(value)) for name, value in both.items()}
    taken["pods"] = 1
    if any(port.get("hostPort") for port in engine["ports"]):
        taken[HOST_PORT] = 1
    if (spec.get("affinity") or {}).get("podAntiAffinity"):
        taken[APART] = 1
    return taken


def _counted(spec: Manifest) -> dict[str, float]:
    """The same for a quota."""
    (engine,) = [item for item in spec["containers"] if item["name"] == "engine"]
    counted: dict[str, float] = {"pods": 1, "count/pods": 1}
    for kind in ("requests", "limits"):
        for name, value in engine["resources"].get(kind, {}).items():
            counted[f"{kind}.{name}"] = _number(str(value))
    for name in ("cpu", "memory", "ephemeral-storage"):
        counted[name] = counted.get(f"requests.{name}", 0)
    return counted


def _quantity(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value * 1000:.0f}m"


def _number(text: str) -> float:
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)
