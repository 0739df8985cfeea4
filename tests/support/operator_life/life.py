"""A Life: one AtomDeployment, its cluster and its operator, as a story plays with them.

Knows how to do what happenings ask for; what has to hold meanwhile is watched by Promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ATOM_PROFILE,
    DEPLOYMENT,
    POD,
    VOLUME_CLAIM,
    Manifest,
)
from atom_operator.integration_values import Site, SiteAddresses
from atom_operator.kinds import (
    LEADER_WORKER_SET,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    SCALED_OBJECT,
    Kind,
)
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.devices.device_claims import (
    DRIVER,
    publish_class,
    publish_devices,
    results_of,
)
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.in_memory_cluster.quantities import text, thousandths
from tests.support.operator.builders_operator import atom_deployment, gpu_node, gpu_pod
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.merged_fields import copied
from tests.support.operator_life.closed import let_others_give_the_turn_back
from tests.support.operator_life.groups import group_of
from tests.support.operator_life.happenings import GOOD, HAPPENINGS, SPOILT
from tests.support.operator_life.others_at_work import ForeignAutoscaler, NodeAutoscaler
from tests.support.operator_life.promises import Promises
from tests.support.operator_life.story import Scene, Story
from tests.support.operator_life.surroundings import (
    HUGEPAGES,
    ZONE,
    ZONES,
    GatewayController,
    make_claim,
)
from tests.support.operator_life.wider import RULES

_SITE = Site(
    engine_tensor_parallel=16,
    engine_multi_node=True,
    addresses=SiteAddresses(prometheus="http://prometheus.test:9090"),
)
_PER_NODE = 8
SICK_TAINT = {"key": "amd-gpu-unhealthy", "value": "AMDGPUXgmi", "effect": "NoSchedule"}
_START_SECONDS = 400
_END_SECONDS = 2500
_REST_SECONDS = 700


def play(story: Story) -> Life:
    """Raises AssertionError where a promise is broken."""
    life = Life(story.scene)
    try:
        life.live(story)
    finally:
        life.operator.close()
    return life


class Life:
    """`name` is the AtomDeployment's."""

    name = "chat"

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        nodes = [_node(number, scene) for number in range(scene.nodes)]
        api = FakeCluster()
        if not scene.keda:
            api.unserved_kinds.add(SCALED_OBJECT)
        self.cluster = InMemoryCluster(api, nodes)
        self.state = self.cluster.state
        self.operator = OperatorClient(self.cluster, site=_SITE)
        self.neighbours = self.changes = 0
        self.before: list[Manifest] = []  # specs, oldest first
        self.spec = _spec(scene)
        self.site: str | None = None  # by the profile
        self.disturbed: set[str] = set()  # uids of pods that somebody else ends
        if scene.weights:
            claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteMany"]}}
            self.state.create(VOLUME_CLAIM, claim)
        if scene.claim:
            make_claim(self.state, "kernels", scene.claim)
        self.gateway: GatewayController | None = None
        if scene.route:
            self.gateway = GatewayController(self.state)
            self.cluster.clients.append(self.gateway.sync)
        self.foreign: ForeignAutoscaler | None = None
        self.cluster.clients.append(lambda: self.foreign and self.foreign.look())
        if scene.claimed:
            publish_class(self.state)
            for node in self.nodes:
                publish_devices(self.state, node["metadata"]["name"], _PER_NODE)
        self.promises = Promises(self)
        self.cluster.clients.append(self.promises.watch)
        if scene.wider.brings_nodes:  # judged from the next round on, when the operator sees them
            brings = NodeAutoscaler(self.cluster, self.new_node)
            self.cluster.clients.append(brings.look)
        api.evicts = self._evict
        self.cluster.settled.append(self.promises.judge)
        self._apply()

    def live(self, story: Story) -> None:
        self.cluster.advance(_START_SECONDS)
        for happening in story.happenings:
            self.promises.happens(f"{happening.name}{happening.arguments}")
            HAPPENINGS[happening.name].does(self, *happening.arguments)
            self.cluster.advance(happening.seconds)
        self.promises.happens("everything is put right")
        self.put_right()
        self.cluster.advance(_END_SECONDS)
        self.promises.judge_the_end()
        written = len(self.cluster.api.writes)
        self.cluster.advance(_REST_SECONDS)
        self.promises.judge_the_rest(self.cluster.api.writes[written:])

    # --- what is there -----------------------------------------------------------------------

    @property
    def nodes(self) -> list[Manifest]:
        return self.cluster.api.nodes or []

    @property
    def parent(self) -> Manifest | None:
        return self.cluster.api.objects.get((ATOM_DEPLOYMENT, "default", self.name))

    @property
    def workload(self) -> Manifest | None:
        return self.workload_of(self.name)

    def workload_of(self, name: str) -> Manifest | None:
        """The newest of both kinds that an AtomDeployment has."""
        found = [
            item
            for kind in (DEPLOYMENT, LEADER_WORKER_SET)
            if (item := self.cluster.api.objects.get((kind, "default", name)))
        ]
        return found[-1] if found else None

    @property
    def pods(self) -> list[Manifest]:
        """The model's own that neither ended nor are to end."""
        return self.pods_of(self.name)

    def pods_of(self, name: str) -> list[Manifest]:
        """Those of an AtomDeployment that neither ended nor are to end."""
        return [
            pod
            for pod in self.cluster.pods
            if (pod["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT) == name
        ]

    def is_own(self, pod: Manifest) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return bool(labels.get(LABEL_DEPLOYMENT) == self.name)

    def pod(self, number: int) -> Manifest | None:
        pods = self.pods
        return pods[number % len(pods)] if pods else None

    def new_node(self, number: int) -> Manifest:
        """A node that something adds, as the first ones were."""
        return _node(number, self.scene)

    def node(self, number: int) -> str:
        return str(self.nodes[number % len(self.nodes)]["metadata"]["name"])

    # --- people ------------------------------------------------------------------------------

    def ask(self, **changes: Any) -> None:
        """Another spec; None takes a field away."""
        self.before.append(copied(self.spec))
        merged = {**self.spec, **changes}
        self.spec = {name: value for name, value in merged.items() if value is not None}
        self._apply()

    def set_profile(self, site: str | None) -> None:
        """Whoever runs the platform makes the default profile another, spoils or deletes it."""
        self.site = site
        self.cluster.api.objects.pop((ATOM_PROFILE, "", "default"), None)
        env = site if site == SPOILT else [{"name": "SITE", "value": site}]
        metadata = {"name": "default", "namespace": ""}
        if site is not None:
            spec = {"engine": {"env": env}}
            self.state.create(ATOM_PROFILE, {"metadata": metadata, "spec": spec})

    def engine(self, **changes: Any) -> None:
        merged = {**(self.spec.get("engine") or {}), **changes}
        self.ask(engine={name: value for name, value in merged.items() if value is not None})

    def ask_for_memory(self, gib: int | None) -> None:
        if self.scene.devices:
            self.ask(template=_template(self.scene, gib, self.changes))
        else:  # whose memory is a limit too
            self.ask(accelerator={"type": "cpu", "memory": f"{gib or 16}Gi"})

    def autoscaling(self, most: int) -> Manifest | None:
        """Groups are not scaled here."""
        if self.scene.groups:
            return None
        method = "KEDA" if self.scene.keda else "HPA"
        return {"method": method, "minReplicas": 1, "maxReplicas": most}

    def ask_as_before(self) -> None:
        if self.before:
            self.spec = self.before.pop()
            self._apply()

    def delete_and_apply_again(self) -> None:
        self.disturb_pods()
        self.cluster.api.objects.pop((ATOM_DEPLOYMENT, "default", self.name), None)
        self.cluster.gitops.wanted.clear()
        self.cluster.act()
        self._apply()

    def change_workload(self, change: Callable[[Manifest], None]) -> None:
        """By hand, as `kubectl edit` or `kubectl scale` does."""
        stored = self.cluster.api.objects.get((DEPLOYMENT, "default", self.name))
        if stored is None:
            return
        self.promises.by_hand()
        change(stored["spec"])
        stored["metadata"]["generation"] += 1
        self.cluster.api.touch(stored)

    def _apply(self) -> None:
        manifest = atom_deployment(self.name)
        manifest["spec"] = copied(self.spec)
        if self.scene.gitops:
            self.cluster.gitops.wanted[:] = [manifest]
            self.cluster.gitops.sync()
        else:
            self.cluster.api.create(ATOM_DEPLOYMENT, manifest)

    # --- the cluster -------------------------------------------------------------------------

    def disturb(self, pod: Manifest) -> None:
        """Of a group all pods: LeaderWorkerSet makes it anew when one of them goes."""
        self.disturbed |= {one["metadata"]["uid"] for one in group_of(self.state, pod)}

    def disturb_pods(self, really: bool = True) -> None:
        for pod in self.pods if really else ():
            self.disturb(pod)

    def change_offer(self, name: str, resource: str, share: int | None) -> None:
        node = self.cluster.node(name)
        if resource not in node["status"]["capacity"]:
            return  # of devices that are claimed a driver says which are there
        whole = node["status"]["capacity"][resource]
        if share is not None:
            whole = text(thousandths(whole) * share // 8 // 1000 * 1000)
        node["status"]["allocatable"][resource] = whole

    def make_sick(self, name: str, devices: int, said_by: str) -> None:
        if said_by == "taint":
            self.cluster.node(name)["spec"]["taints"] = [SICK_TAINT]
            return
        told, fail = said_by == "kubelet", said_by == "engine"
        kept_off = "gone" if said_by == "plugin" else "taint"
        self.cluster.make_sick(name, devices, told=told, fail=fail, kept_off=kept_off)

    def make_well(self, name: str) -> None:
        self.cluster.make_well(name)
        taints = self.cluster.node(name)["spec"].get("taints") or []
        self.cluster.node(name)["spec"]["taints"] = [t for t in taints if t != SICK_TAINT]

    def _evict(self, pod: Manifest) -> str | None:
        """The operator asks for it."""
        if not self.promises.groups.judge_give_back(pod):
            self.promises.devices.judge_move(pod)
        refused = self.cluster.evict(pod)
        if refused is None:
            self.disturb(pod)
        return refused

    def put_neighbour(self, node: str, devices: int) -> None:
        """Somebody else's pod, where there is room for it."""
        if self.scene.claimed:
            self._put_claiming_neighbour(node, devices)
            return
        used = sum(
            int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get("amd.com/gpu", 0))
            for pod in self.cluster.pods
            if pod["spec"].get("nodeName") == node
        )
        offered = int(self.cluster.node(node)["status"]["allocatable"]["amd.com/gpu"])
        if node in self.state.lost or used + devices > offered:
            return
        self.neighbours += 1
        pod = gpu_pod(f"neighbour-{self.neighbours}", node, devices)
        pod["metadata"]["uid"] = f"uid-{10**7 + self.neighbours}"
        pod["metadata"]["namespace"] = "others"
        self.cluster.api.put_pod(pod)

    def _put_claiming_neighbour(self, node: str, devices: int) -> None:
        free = [device for device in self._devices(node) if device not in self._given(node)]
        if node in self.state.lost or len(free) < devices:
            return
        self.neighbours += 1
        name = f"neighbour-{self.neighbours}"
        pod = gpu_pod(name, node, 0)
        pod["metadata"] |= {"uid": f"uid-{10**7 + self.neighbours}", "namespace": "others"}
        self.cluster.api.put_pod(pod)
        claim: Manifest = {"metadata": {"name": name, "namespace": "others"}, "spec": {}}
        results = [{"driver": DRIVER, "pool": node, "device": each} for each in free[:devices]]
        user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        claim["spec"] = {"devices": {"requests": []}}
        claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
        self.state.create(RESOURCE_CLAIM, claim, pod)

    def _devices(self, node: str) -> list[str]:
        """Those that new pods may be given."""
        return [
            device["name"]
            for item in self.state.all(RESOURCE_SLICE)
            if item["spec"]["nodeName"] == node
            for device in item["spec"]["devices"]
            if not device.get("taints")
        ]

    def _given(self, node: str) -> set[str]:
        return {
            result["device"]
            for claim in self.state.all(RESOURCE_CLAIM)
            for result in results_of(claim)
            if result["pool"] == node
        }

    def set_quota(self, resource: str, spare: int) -> None:
        """A quota of what is used by now, and of `spare` pods more."""
        if self.scene.claimed and resource == "requests.amd.com/gpu":
            resource = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
        self.remove_all(RESOURCE_QUOTA)
        manifest = {"metadata": {"name": "team"}, "spec": {"hard": {resource: "1Pi"}}}
        quota = self.state.create(RESOURCE_QUOTA, manifest)
        self.cluster.act()
        used = thousandths(quota["status"]["used"][resource])
        pods = len(self.pods)
        each = used // pods if pods and resource != "count/jobs.batch" else 1000
        quota["spec"]["hard"][resource] = text(used + spare * each)

    def remove_all(self, kind: Kind) -> None:
        for item in self.state.all(kind):
            self.state.remove(kind, item)

    def upgrade(self) -> None:
        self.promises.upgrades()
        self.operator.upgrade()

    # --- the end -----------------------------------------------------------------------------

    def put_right(self) -> None:
        """Nothing is in the way any more, and the spec asks for what there is room for."""
        self.operator.running = True
        self.remove_all(RESOURCE_QUOTA)
        self.remove_all(LIMIT_RANGE)
        self.state.policies.clear()
        self.state.silent_policy = frozenset()
        self.foreign = None
        let_others_give_the_turn_back(self)
        self.cluster.kubelets.rejecting.clear()
        if self.gateway is not None:
            self.gateway.refused = None
        if self.site == SPOILT:
            self.set_profile("1")
        for number, node in enumerate(self.nodes):
            self.cluster.return_node(node["metadata"]["name"])
            self.cluster.make_well(node["metadata"]["name"])
            node["status"]["allocatable"] = dict(node["status"]["capacity"])
            node["spec"]["taints"] = []
            node["metadata"]["labels"] |= _node(number, self.scene)["metadata"]["labels"]
        for pod in self.state.all(POD):
            if pod["metadata"]["name"].startswith("neighbour"):
                self.state.remove(POD, pod)
        self.change_workload(lambda spec: spec.pop("paused", None))
        self.changes += 1
        engine = {**(self.spec.get("engine") or {}), "image": GOOD[0]}
        engine.pop("extraArgs", None)
        template = _template(self.scene, None, self.changes)
        if self.state.load.get(self.name):
            self.state.load[self.name] = 1.0
        if not self.scene.devices:
            self.spec = {**self.spec, "accelerator": {"type": "cpu", "memory": "16Gi"}}
        self.change_workload(_at_least_one)
        scaling = self.spec.get("autoscaling") if self.scene.claim in ("", "zone") else None
        changes = {"template": template, "replicas": 1, "rollout": _ROLLOUT}
        changes |= {"suspend": None, "canary": None}
        if "disaggregation" in self.spec:
            changes["disaggregation"] = {"prefill": {}}
        self.ask(engine=engine, autoscaling=scaling, **changes)


# A revision that cannot become ready is given up within a happening's time.
_ROLLOUT = {"progressDeadlineSeconds": 900}


def _node(number: int, scene: Scene) -> Manifest:
    node = gpu_node("abcdefghijkl"[number], _PER_NODE)
    node["metadata"]["labels"][ZONE] = ZONES[number % len(ZONES)]
    if scene.wider.brings_nodes:
        node["metadata"]["labels"]["karpenter.sh/nodepool"] = "gpus"
    if scene.claimed:
        node["metadata"]["labels"] = {ZONE: node["metadata"]["labels"][ZONE]}
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            del amounts["amd.com/gpu"]
    offered = {"memory": f"{scene.node_gib}Gi", "cpu": "128"}
    if scene.hugepages:
        offered[HUGEPAGES] = "1Gi"
    node["status"]["capacity"] |= offered
    node["status"]["allocatable"] |= offered
    return node


def _spec(scene: Scene) -> Manifest:
    manifest = atom_deployment("chat", replicas=scene.replicas, rollout=_ROLLOUT)["spec"]
    if scene.devices:
        claim = {"claim": {}} if scene.claimed else {}
        manifest["accelerator"] = {"type": "amd", "product": "MI300X", **claim}
        manifest["model"] = {"source": "hf://Qwen/Qwen3-8B"}
        manifest["parallelism"] = {"tensor": scene.devices}
    if scene.groups:
        manifest["parallelism"] = {"tensor": scene.devices * 2, "nodes": 2}
    if scene.weights:
        manifest["model"] = {"source": "hf://Qwen/Qwen3-0.6B", "revision": "v1"}
        manifest["cache"] = {"weights": {"claim": "models"}}
        manifest["accelerator"] = {"type": "cpu", "memory": "16Gi"}
    if scene.per_pod_gib:
        manifest["template"] = _template(scene, scene.per_pod_gib, 0)
    elif scene.hugepages or scene.wider.rule:
        manifest["template"] = _template(scene, None, 0)
    if scene.claim:
        manifest["cache"] = {"compile": {"claim": "kernels"}}
    if scene.route:
        matches = {"matches": ["Header"]} if scene.wider.by_header else {}
        manifest["gateway"] = {"httpRoute": {"parentRefs": [{"name": "gate"}], **matches}}
    if scene.scales:
        method = "KEDA" if scene.keda else "HPA"
        manifest["autoscaling"] = {"method": method, "minReplicas": 1, "maxReplicas": 4}
    return dict(manifest)


def _at_least_one(spec: Manifest) -> None:
    """An autoscaler leaves a workload alone that somebody scaled to zero."""
    spec["replicas"] = max(1, spec.get("replicas", 1))


def _template(scene: Scene, gib: int | None, number: int) -> Manifest | None:
    """Pods that ask for so much memory; another number makes other pods."""
    template: dict[str, Any] = {}
    if number:
        template["metadata"] = {"annotations": {"try": str(number)}}
    requests = {"memory": f"{gib}Gi"} if gib is not None else {}
    pages = {HUGEPAGES: "1Gi"} if scene.hugepages else {}
    if requests or pages:
        resources = {"requests": {**requests, **pages}, **({"limits": pages} if pages else {})}
        engine = {"name": "engine", "resources": resources}
        template["spec"] = {"containers": [engine]}
    if rule := RULES[scene.wider.rule]:
        template["spec"] = {**(template.get("spec") or {}), **copied(dict(rule))}
    return template or None
