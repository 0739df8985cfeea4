"""Who plays the scripts of `same_scripts`: the doubles in memory, and a real cluster.

Every player answers a step with what both can say of it. Names of pods, times, uids and defaults of
the API server differ, so they are left out.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from atom_operator.cluster.errors import ClusterError, RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import CONFIG_MAP, DEPLOYMENT, POD, Kind, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.same_scripts import Step
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.kinds import RESOURCE_QUOTA
from tests.support.in_memory_cluster.state import active, condition_of, is_ready
from tests.support.operator.fake_cluster import FakeCluster
from tools.kube import KubeError

Answer = dict[str, Any]
_READY: Manifest = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
_RETRIES_SECONDS = 1200.0  # of the cluster in memory: every refused pod is tried again meanwhile
_OTHER = "another"


# --- writes ------------------------------------------------------------------------------------


class WritePlayer:
    """Plays a write script through the operator's port; `apply_as` is the other client's apply."""

    def __init__(
        self,
        port: ClusterPort,
        namespace: str,
        apply_as: Callable[[Kind, Manifest], Awaitable[None]],
    ) -> None:
        self._port, self._namespace, self._apply_as = port, namespace, apply_as
        self._versions: dict[tuple[Kind, str], list[str]] = {}

    async def play(self, step: Step) -> Answer:
        """Do one step; return the error's class or what the object is after it."""
        given = step.given
        kind: Kind = given["kind"]
        if step.action == "list":
            found = await self._port.list_labelled(kind, self._namespace, given["labels"])
            return {"names": sorted(item["metadata"]["name"] for item in found)}
        manifest = given.get("manifest") or {"metadata": {"name": given["name"]}}
        name = manifest["metadata"]["name"]
        placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": self._namespace}}
        try:
            await self._write(step, kind, placed)
        except ClusterError as error:
            return {"error": type(error).__name__, **await self._seen(kind, name)}
        return await self._seen(kind, name)

    async def _write(self, step: Step, kind: Kind, manifest: Manifest) -> None:
        match step.action:
            case "apply":
                await self._port.apply(kind, manifest)
            case "apply_as_other":
                await self._apply_as(kind, manifest)
            case "make":
                await self._port.make(kind, manifest)
            case "replace":
                await self._replace(kind, manifest, stale=step.given["stale"])
            case "delete":
                await self._port.delete(kind, self._namespace, manifest["metadata"]["name"])

    async def _replace(self, kind: Kind, manifest: Manifest, *, stale: bool) -> None:
        """Replace what is there, whatever its version, or on the strength of an older version."""
        metadata = manifest["metadata"]
        there = await self._port.get(kind, self._namespace, metadata["name"])
        if there is None:
            return
        current = there["metadata"]["resourceVersion"]
        known = self._versions.get((kind, metadata["name"]), [])
        older = [version for version in known if version != current]
        if stale and older:
            manifest = {**manifest, "metadata": {**metadata, "resourceVersion": older[-1]}}
        await self._port.replace(kind, manifest)

    async def _seen(self, kind: Kind, name: str) -> Answer:
        item = await self._port.get(kind, self._namespace, name)
        known = self._versions.setdefault((kind, name), [])
        if item is None:
            known.clear()
            return {"gone": True}
        version = item["metadata"]["resourceVersion"]
        seen = _shown(kind, item)
        if kind is CONFIG_MAP:  # the controller of Deployments writes its own part of others
            seen["written"] = not known or known[-1] != version
        known.append(version)
        return seen


def _shown(kind: Kind, item: Manifest) -> Answer:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    seen: Answer = {
        "labels": metadata.get("labels") or {},
        "annotations": {name: text for name, text in annotations.items() if "/" not in name},
    }
    if kind is CONFIG_MAP:
        return {**seen, "data": item.get("data") or {}}
    spec = item["spec"]
    template = spec["template"]
    return {
        **seen,
        "generation": metadata["generation"],
        "replicas": spec["replicas"],
        "pod labels": template["metadata"]["labels"],
        "containers": [_container(found) for found in template["spec"]["containers"]],
        "volumes": [found["name"] for found in template["spec"].get("volumes") or ()],
    }


def _container(item: Manifest) -> Answer:
    kept = {name: item.get(name) or [] for name in ("args", "env")}
    return {"name": item["name"], "image": item["image"], **kept}


def in_memory_writer(fake: FakeCluster, namespace: str) -> WritePlayer:
    """Return the player of the double."""

    async def apply_as(kind: Kind, manifest: Manifest) -> None:
        key = (kind, namespace, manifest["metadata"]["name"])
        fake.apply_as(_OTHER, key, manifest)

    return WritePlayer(fake, namespace, apply_as)


def live_writer(port: ClusterPort, cluster: LiveCluster) -> WritePlayer:
    """Return the player of the real API server."""

    async def apply_as(kind: Kind, manifest: Manifest) -> None:
        flags = ("--server-side", f"--field-manager={_OTHER}", "--force-conflicts")
        try:
            cluster.kubectl("apply", *flags, "--filename=-", manifest=manifest)
        except KubeError as error:
            if "is invalid" not in str(error):
                raise
            raise RefusedError(str(error), 422) from error

    return WritePlayer(port, cluster.namespace, apply_as)


# --- workloads ---------------------------------------------------------------------------------


class InMemoryWorkload:
    """The cluster in memory, which comes to rest at each step."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster()
        self._state = self.cluster.state

    def play(self, step: Step) -> None:
        given = step.given
        match step.action:
            case "quota":
                spec = {"hard": {"pods": str(given["pods"])}}
                self._state.create(RESOURCE_QUOTA, {"metadata": {"name": "few"}, "spec": spec})
            case "create":
                self._state.create(DEPLOYMENT, given["manifest"])
            case "ready":
                for pod in self._pods(given["image"], ready=False)[: given["count"]]:
                    self._state.set_status(pod, {**pod["status"], **_ready_at(self._state.stamp())})
            case "end":
                for pod in self._pods(given["image"], ready=given["ready"])[:1]:
                    self._state.delete_pod(pod)
            case _:
                item = self.cluster.api.find(DEPLOYMENT, "web")
                changed = json.loads(json.dumps(item["spec"]))
                change_spec(changed, step)
                if changed != item["spec"]:
                    self.cluster.api.change_spec(DEPLOYMENT, "web", **changed)
        self.cluster.advance(_RETRIES_SECONDS)

    def _pods(self, image: str, *, ready: bool) -> list[Manifest]:
        return _chosen(self._state.all(POD), image, ready=ready)

    def has_a_race(self) -> bool:
        """Tell whether several ReplicaSets want more pods than the quota has: the set whose retry
        comes first takes each free place, so a real cluster has several right rests from here."""
        most = [int(item["spec"]["hard"]["pods"]) for item in self._state.all(RESOURCE_QUOTA)]
        wanted = [item["spec"]["replicas"] for item in self._state.all(REPLICA_SET)]
        several = len([count for count in wanted if count]) > 1
        return several and any(sum(wanted) > limit for limit in most)

    def look(self) -> Answer | None:
        sets, pods = self._state.all(REPLICA_SET), self._state.all(POD)
        return _workload_shown(self.cluster.api.find(DEPLOYMENT, "web"), sets, pods)


class LiveWorkload:
    """A namespace of a real cluster; `look` gives None while a controller has not seen the last
    write."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster

    def play(self, step: Step) -> None:
        given, kubectl = step.given, self._cluster.kubectl
        match step.action:
            case "quota":
                kubectl("create", "quota", "few", f"--hard=pods={given['pods']}")
                self._cluster.wait("the quota's count", self._quota_counts)
            case "create":
                kubectl("apply", "--filename=-", manifest=given["manifest"])
            case "ready":
                for pod in self._pods(given["image"], ready=False)[: given["count"]]:
                    patch = json.dumps({"status": _READY})
                    flags = ("--subresource=status", "--type=strategic", f"--patch={patch}")
                    kubectl("patch", "pod", pod["metadata"]["name"], *flags)
            case "end":
                for pod in self._pods(given["image"], ready=given["ready"])[:1]:
                    kubectl("delete", "pod", pod["metadata"]["name"])
            case _:
                item = self._items("deployments")[0]
                change_spec(item["spec"], step)
                kubectl("replace", "--filename=-", manifest=item)

    def _quota_counts(self) -> bool:
        found = self._items("resourcequotas")
        return bool(found and (found[0].get("status") or {}).get("used"))

    def exceeds_quota(self) -> bool:
        """Tell whether more pods are there than the quota has. Its controller counts what it has
        seen, so a pod that replaces an ended one may be missing in the count, and one more gets a
        place."""
        most = [int(item["spec"]["hard"]["pods"]) for item in self._items("resourcequotas")]
        return any(len(self._items("pods")) > limit for limit in most)

    def _pods(self, image: str, *, ready: bool) -> list[Manifest]:
        return _chosen(self._items("pods"), image, ready=ready)

    def _items(self, plural: str) -> list[Manifest]:
        listed = self._cluster.kubectl("get", plural, "--output=json").stdout
        return list(json.loads(listed)["items"])

    def look(self) -> Answer | None:
        listed = self._items("deployments,replicasets,pods")
        of = {
            kind: [item for item in listed if item["kind"] == kind]
            for kind in ("Deployment", "ReplicaSet", "Pod")
        }
        seen = [*of["Deployment"], *of["ReplicaSet"]]
        if not all(_is_observed(item) for item in seen):
            return None
        return _workload_shown(of["Deployment"][0], of["ReplicaSet"], of["Pod"])


def change_spec(spec: Manifest, step: Step) -> None:
    """Change a Deployment's spec as a step says."""
    given = step.given
    match step.action:
        case "scale":
            spec["replicas"] = given["replicas"]
        case "template":
            spec["template"]["spec"]["containers"][0]["image"] = given["image"]
        case "pause":
            spec["paused"] = given["paused"]
        case "bounds":
            spec["strategy"]["rollingUpdate"] = dict(given)
        case _:
            raise ValueError(f"{step.action} is no change of a spec")


def _ready_at(stamp: str) -> Manifest:
    conditions = [{**found, "lastTransitionTime": stamp} for found in _READY["conditions"]]
    return {"phase": _READY["phase"], "conditions": conditions}


def _is_observed(item: Manifest) -> bool:
    seen = (item.get("status") or {}).get("observedGeneration", 0)
    return bool(seen == item["metadata"]["generation"])


def _image(pod_spec: Manifest) -> str:
    return str(pod_spec["containers"][0]["image"])


def _chosen(pods: list[Manifest], image: str, *, ready: bool) -> list[Manifest]:
    """Return the pods of an image, or of every image in its order if that is empty."""
    found = [pod for pod in active(pods) if is_ready(pod) is ready]
    found.sort(key=lambda pod: _image(pod["spec"]))
    return [pod for pod in found if image in ("", _image(pod["spec"]))]


def _workload_shown(item: Manifest, sets: list[Manifest], pods: list[Manifest]) -> Answer:
    status: Manifest = item.get("status") or {}
    names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return {
        **{name: status.get(name, 0) for name in names},
        "Available": (condition_of(item, "Available") or {}).get("status"),
        "ReplicaFailure": condition_of(item, "ReplicaFailure") is not None,
        "sets": {
            _image(one["spec"]["template"]["spec"]): one["spec"]["replicas"]
            for one in sets
            if one["spec"]["replicas"]
        },
        "pods": sorted((_image(pod["spec"]), is_ready(pod)) for pod in active(pods)),
    }
