"""What happens to an AtomDeployment and its cluster: people, nodes, quotas, autoscalers, operators.

Each happening is a function of a Life and drawn arguments, and does one thing. It promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_operator.domain import DEPLOYMENT, JOB, POD, SERVICE, SERVICE_ACCOUNT, EngineLoad
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from tests.support.in_memory_cluster.kubelet import BAD, TYPO
from tests.support.in_memory_cluster.node_controller import evict
from tests.support.in_memory_cluster.state import is_terminal

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

GOOD = ("registry.test/atom:1", "registry.test/atom:2")
IMAGES = (*GOOD, f"registry.test/atom:{BAD}", f"registry.test/atom:{TYPO}")
SPOILT = "no list"  # in place of variables, in a profile
SIDECAR = {"name": "proxy", "image": "mesh:1", "resources": {"requests": {"memory": "64Mi"}}}
_ANY = tuple(range(8))
_QUOTAS = (
    "pods",
    "requests.amd.com/gpu",
    "requests.memory",
    "limits.memory",
    "count/jobs.batch",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a happening is drawn: how often, and with which arguments."""

    does: Callable[..., None]
    weight: int
    choices: tuple[Sequence[Any], ...]


HAPPENINGS: dict[str, Kind] = {}


def _happens(weight: int, *choices: Sequence[Any]) -> Callable[..., Any]:
    def register(does: Callable[..., None]) -> Callable[..., None]:
        HAPPENINGS[does.__name__] = Kind(does, weight, choices)
        return does

    return register


# --- what people ask for ---------------------------------------------------------------------


@_happens(5, (512, 1024, None))
def ask_for_a_length(life: Life, length: int | None) -> None:
    life.engine(maxModelLen=length)


@_happens(4, IMAGES)
def ask_for_an_image(life: Life, image: str) -> None:
    life.engine(image=image)


@_happens(2, (0, 1, 2, 3, 4))
def ask_for_replicas(life: Life, replicas: int) -> None:
    life.ask(replicas=replicas)


@_happens(2, (2, 3, None))
def ask_for_a_frontend(life: Life, replicas: int | None) -> None:
    life.ask(frontend=None if replicas is None else {"replicas": replicas})


@_happens(2, (None, 48, 100, 200))
def ask_for_memory(life: Life, gib: int | None) -> None:
    life.ask_for_memory(gib)


@_happens(1, ("Auto", "Auto", "Surge", "InPlace", "Recreate"))
def ask_for_a_strategy(life: Life, strategy: str) -> None:
    life.ask(rollout={**life.spec["rollout"], "strategy": strategy})


@_happens(1, (None, 2, 4))
def ask_for_an_autoscaler(life: Life, most: int | None) -> None:
    life.ask(autoscaling=life.autoscaling(most) if most else None)


@_happens(1, (True, True, None))
def suspend(life: Life, suspended: bool | None) -> None:
    life.ask(suspend=suspended)


@_happens(1, ("1", "2", SPOILT, None))
def change_the_profile(life: Life, site: str | None) -> None:
    life.set_profile(site)


@_happens(1)
def ask_for_what_is_refused(life: Life) -> None:
    life.engine(extraArgs=["--model=x"])


@_happens(2)
def roll_back_the_spec(life: Life) -> None:
    life.ask_as_before()


@_happens(1)
def delete_and_apply_again(life: Life) -> None:
    life.delete_and_apply_again()


# --- what people do by hand ------------------------------------------------------------------


@_happens(1, (True, False))
def pause_the_workload(life: Life, paused: bool) -> None:
    life.change_workload(lambda spec: spec.__setitem__("paused", paused))


@_happens(1, (0, 1, 3))
def scale_the_workload(life: Life, replicas: int) -> None:
    life.change_workload(lambda spec: spec.__setitem__("replicas", replicas))


@_happens(1, (SERVICE, SERVICE_ACCOUNT, DEPLOYMENT))
def delete_a_child(life: Life, kind: Any) -> None:
    life.disturb_pods(kind in (DEPLOYMENT, SERVICE))  # nobody reaches pods without a Service
    life.cluster.api.objects.pop((kind, "default", life.name), None)


@_happens(2, _ANY)
def delete_a_pod(life: Life, number: int) -> None:
    pod = life.pod(number)
    if pod is not None:
        life.disturb(pod)
        life.cluster.state.delete_pod(pod)


# --- what happens to nodes and pods ----------------------------------------------------------


@_happens(2, _ANY)
def evict_by_its_kubelet(life: Life, number: int) -> None:
    pod = life.pod(number)
    if pod is not None and pod["spec"].get("nodeName") and pod["status"].get("startTime"):
        life.disturb(pod)
        words = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi."
        life.cluster.kubelets.evict(pod, words)


@_happens(1, _ANY)
def evict_by_its_api(life: Life, number: int) -> None:
    pod = life.pod(number)
    if pod is not None and evict(life.cluster.state, pod):
        life.disturb(pod)


@_happens(2, _ANY)
def drain_a_node(life: Life, number: int) -> None:
    life.cluster.drain(life.node(number))


@_happens(2, _ANY)
def lose_a_node(life: Life, number: int) -> None:
    life.cluster.lose_node(life.node(number))


@_happens(3, _ANY)
def return_a_node(life: Life, number: int) -> None:
    life.cluster.return_node(life.node(number))


@_happens(1, _ANY, ("amd.com/gpu", "memory"), (0, 4, None))
def change_what_a_node_offers(life: Life, number: int, resource: str, share: int | None) -> None:
    """A device plugin that restarts, devices that are unhealthy, memory set aside."""
    life.change_offer(life.node(number), resource, share)


@_happens(2, _ANY, (1, 8), ("plugin", "kubelet", "engine", "taint"))
def let_devices_fall_sick(life: Life, number: int, devices: int, said_by: str) -> None:
    """Their plugin takes them out; beside it the kubelet, engines that end or a taint may tell."""
    life.make_sick(life.node(number), devices, said_by)


@_happens(2, _ANY)
def let_devices_recover(life: Life, number: int) -> None:
    life.make_well(life.node(number))


@_happens(1, _ANY, (True, False))
def let_a_kubelet_reject(life: Life, number: int, rejects: bool) -> None:
    rejecting = life.cluster.kubelets.rejecting
    rejecting.add(life.node(number)) if rejects else rejecting.discard(life.node(number))


@_happens(2, _ANY, (1, 4, 8))
def let_others_take_devices(life: Life, number: int, devices: int) -> None:
    life.put_neighbour(life.node(number), devices)


@_happens(2)
def let_others_go(life: Life) -> None:
    for pod in life.cluster.state.all(POD):
        if pod["metadata"]["name"].startswith("neighbour") and not is_terminal(pod):
            life.cluster.state.remove(POD, pod)
            return


# --- what happens to the namespace -----------------------------------------------------------


@_happens(
    3,
    ("pods", "requests.amd.com/gpu", "requests.memory", "limits.memory", "count/jobs.batch"),
    (0, 1),
)
def limit_by_a_quota(life: Life, resource: str, spare: int) -> None:
    """As much as is used, or room for one pod more."""
    life.set_quota(resource, spare)


@_happens(2)
def lift_the_quota(life: Life) -> None:
    life.remove_all(RESOURCE_QUOTA)


@_happens(1, ({"default": {"memory": "256Gi"}}, {"max": {"memory": "1Gi"}}))
def limit_by_a_range(life: Life, rule: dict[str, Any]) -> None:
    life.remove_all(LIMIT_RANGE)
    limits = [{"type": "Container", **rule}]
    made = {"metadata": {"name": "limits"}, "spec": {"limits": limits}}
    life.cluster.state.create(LIMIT_RANGE, made)


@_happens(2)
def lift_the_range(life: Life) -> None:
    life.remove_all(LIMIT_RANGE)


@_happens(1, (True, False))
def inject_a_sidecar(life: Life, injected: bool) -> None:
    life.cluster.state.sidecars[:] = [SIDECAR] if injected else []


@_happens(1, ((POD,), (POD, JOB), (JOB,), ()))
def refuse_by_a_policy(life: Life, kinds: tuple[Any, ...]) -> None:
    def policy(kind: Any, _item: Any) -> str | None:
        return "the label team is missing" if kind in kinds else None

    life.cluster.state.policies[:] = [policy] if kinds else []


@_happens(1, ("Accepted", "ResolvedRefs", None))
def let_the_gateway_refuse(life: Life, condition: str | None) -> None:
    if life.gateway is not None:
        life.gateway.refused = condition


# --- what happens to autoscalers and operators -----------------------------------------------


@_happens(4, (0.0, 0.5, 1.5, 2.5, 9.0))
def let_the_load_move(life: Life, load: float) -> None:
    life.cluster.state.load[life.name] = load


@_happens(2)
def restart_the_operator(life: Life) -> None:
    life.operator.restart()


@_happens(2, (1, 2, 3, 5))
def kill_the_operator(life: Life, writes: int) -> None:
    """It dies behind a write, and another begins."""
    life.operator.die_after(writes)


@_happens(1, (True, False))
def stop_the_operator(life: Life, stopped: bool) -> None:
    life.operator.running = not stopped


@_happens(1)
def upgrade_the_operator(life: Life) -> None:
    life.upgrade()


@_happens(1, GOOD)
def change_the_default_image(life: Life, image: str) -> None:
    life.operator.images.update(amd=image, cpu=image)
    life.operator.restart()


# --- what stories tell and nobody draws, so that a seed stays the life that it was ----------------


@_happens(0)
def let_requests_open(life: Life, number: int, requests: int) -> None:
    """On one pod, which has as many until it goes."""
    pod = life.pod(number)
    if pod is not None and (pod.get("status") or {}).get("podIP"):
        life.operator.engines.loads[pod["status"]["podIP"]] = EngineLoad(requests, 0)


PRESSURES = ("disk-pressure", "memory-pressure", "pid-pressure", "network-unavailable")


@_happens(0, _ANY, PRESSURES)
def put_a_node_under_pressure(life: Life, number: int, pressure: str) -> None:
    """Its kubelet says so, and the node controller taints it: it stays ready, and takes no pod."""
    taint = {"key": f"node.kubernetes.io/{pressure}", "effect": "NoSchedule"}
    node = life.cluster.node(life.node(number))
    taints = [item for item in node["spec"].get("taints") or () if item["key"] != taint["key"]]
    node["spec"]["taints"] = [*taints, taint]


@_happens(0, _ANY)
def lift_the_pressure(life: Life, number: int) -> None:
    node = life.cluster.node(life.node(number))
    taints = node["spec"].get("taints") or ()
    node["spec"]["taints"] = [item for item in taints if "pressure" not in item["key"]]


@_happens(0)
def taint_a_node(life: Life, number: int) -> None:
    """For maintenance: what runs there stays."""
    taint = {"key": "maintenance", "value": "yes", "effect": "NoSchedule"}
    life.cluster.node(life.node(number))["spec"]["taints"] = [taint]


@_happens(0)
def cordon_a_node(life: Life, number: int) -> None:
    life.cluster.node(life.node(number))["spec"]["unschedulable"] = True


@_happens(0)
def unlabel_a_node(life: Life, number: int) -> None:
    """AMD's node labeller is gone, and with it what the product is known by."""
    life.cluster.node(life.node(number))["metadata"]["labels"].pop("amd.com/gpu.device-id", None)


@_happens(0)
def drop_the_template(life: Life) -> None:
    """The rules between pods go with it: old pods have them still, and new ones do not."""
    life.ask(template=None)


@_happens(0)
def delete_the_replica_sets(life: Life) -> None:
    life.disturb_pods()
    life.remove_all(REPLICA_SET)


# Drawn by a draw of their own, so that the lives of all seeds stay what they were beside them.
LATER = ("put_a_node_under_pressure",)
