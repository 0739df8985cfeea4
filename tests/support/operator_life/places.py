"""Whether one more pod of a workload would be admitted and find a node, if these and those were
gone: asked of the cluster's own admission and scheduler, which nothing here imitates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from atom_operator.kinds import RESOURCE_CLAIM, Kind
from tests.support.in_memory_cluster.admission import admitted, check
from tests.support.in_memory_cluster.claims import attached_elsewhere
from tests.support.in_memory_cluster.devices.device_claims import claims_wanted
from tests.support.in_memory_cluster.scheduler import nodes_for
from tests.support.in_memory_cluster.state import (
    ClusterState,
    condition_of,
    controller_of,
    is_ready,
    is_terminal,
)
from tests.support.operator.merged_fields import copied

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_REVISION = "serving.atom.dev/revision"
_GROUP_SIZE = 2


def strategy_is_due(life: Life, workload: Manifest) -> str | None:
    """What is wrong with a strategy at the moment at which it is chosen; None where nothing is."""
    strategy = workload["spec"]["strategy"]
    recreates = strategy["type"] == "Recreate"
    if not recreates and not strategy["rollingUpdate"]["maxUnavailable"]:
        return None
    old = [pod for pod in old_pods(life, workload) if is_ready(pod)]
    old = [pod for pod in old if not pod["metadata"].get("deletionTimestamp")]
    if not old or not workload["spec"].get("replicas", 1):
        return None
    refused = condition_of(workload, "ReplicaFailure") or {}
    widened = not recreates and strategy["rollingUpdate"]["maxUnavailable"] > 1
    if "exceeded quota" in refused.get("message", "") and not widened:
        return None  # there may be room by now: the words stand until the next pod is tried
    new = [pod for pod in life.pods if _is_newest(pod, workload)]
    if not new and not admits(life.state, workload, old_pods(life, workload), 1):
        return f"old pods go for new ones that would be refused, by {strategy}"
    if fits(life.state, workload, ()):
        return f"a spare pod had a place, and old pods go first, by {strategy}"
    # Where one alone serves, it goes for a new one in its place by either strategy.
    if recreates and len(old) > 1 and all(fits(life.state, workload, [pod]) for pod in old):
        return "a new pod would fit in the place of any old one, and all of them go"
    return None


def needs_several(life: Life, workload: Manifest) -> bool:
    """Whether a new pod would find no place, were any one old pod gone, but would without all."""
    old = [pod for pod in old_pods(life, workload) if pod["spec"].get("nodeName")]
    if fits(life.state, workload, ()) or any(fits(life.state, workload, [pod]) for pod in old):
        return False
    return fits(life.state, workload, old)


def groups_are_due(life: Life, workload: Manifest, is_under_way: bool) -> str | None:
    """What is wrong with a change of groups, which replaces all that serve, at its beginning; not
    while the change before it has a group away, for which no other one goes."""
    old = old_pods(life, workload)
    if not old or len(old) != len(life.pods) or not all(map(is_ready, old)):
        return None
    if is_under_way and len(old) < workload["spec"].get("replicas", 1) * _GROUP_SIZE:
        return None
    if admits(life.state, workload, old, 1):
        return None
    return "groups go for new ones that would be refused"


def all_serve(life: Life, workload: Manifest) -> bool:
    """Whether every group that a workload asks for is there, ready and of its revision."""
    pods = life.pods
    wanted = workload["spec"].get("replicas", 1) * _GROUP_SIZE
    return len(pods) == wanted and all(is_ready(pod) and _is_newest(pod, workload) for pod in pods)


def fits_without(life: Life, workload: Manifest) -> bool:
    """Whether a new pod waits that its own old pods alone keep from starting."""
    old = old_pods(life, workload)
    if not old or any(pod["metadata"].get("deletionTimestamp") for pod in old):
        return False
    new = [pod for pod in life.pods if _is_newest(pod, workload)]
    placed = [pod for pod in new if pod["spec"].get("nodeName")]
    waiting = [pod for pod in new if not pod["spec"].get("nodeName")]
    if len(placed) >= workload["spec"].get("replicas", 1) or not all(map(is_ready, placed)):
        return False
    if fits(life.state, workload, waiting):
        return False  # it will be there at once, or something that is not of here keeps it
    gone = [*waiting, *old]
    missing = workload["spec"].get("replicas", 1) - len(placed)
    # What serves stays: it does not go for fewer than serve now.
    serving = min(missing, sum(map(is_ready, old)))
    return fits(life.state, workload, gone) and admits(life.state, workload, gone, serving)


def fits(state: ClusterState, workload: Manifest, without: Iterable[Manifest]) -> bool:
    """Whether a pod of the workload would start while `without` are gone."""
    with _hidden(state, without):
        try:
            pod = admitted(state, _one_more(workload))
            for claim in claims_wanted(state, pod):
                check(state, RESOURCE_CLAIM, claim)
        except RefusedError:
            return False
        if not nodes_for(state, pod):
            return False
        # The scheduler does not ask where a disk is, and a cordon can be lifted before it looks:
        # it may take any node.
        return not any(_is_elsewhere(state, pod, node) for node in state.api.nodes or [])


def fits_beside(
    state: ClusterState,
    workload: Manifest,
    waiting: Iterable[Manifest],
    without: Iterable[Manifest],
) -> bool:
    """Whether one more pod would start beside those that wait for a node, while `without` are
    gone."""
    with _hidden(state, without):
        for pod in waiting:
            for node in nodes_for(state, pod)[:1]:
                home = {**pod["spec"], "nodeName": node["metadata"]["name"]}
                state.api.objects[_key(pod)] = {**pod, "spec": home}
        return fits(state, workload, ())


def fits_a_new_node(life: Life, workload: Manifest) -> bool:
    """Whether a pod of the workload would start on a node that something adds."""
    api, nodes = life.state.api, life.state.api.nodes or []
    api.nodes = [*nodes, life.new_node(len(nodes))]
    try:
        return fits(life.state, workload, ())
    finally:
        api.nodes = nodes


def admits(
    state: ClusterState, workload: Manifest, without: Iterable[Manifest], count: int
) -> bool:
    """Whether quotas would take so many pods of the workload while `without` are gone."""
    with _hidden(state, without):
        try:
            for number in range(count):
                pod = admitted(state, _one_more(workload, number))
                state.api.objects[_key(pod)] = pod
                for claim in claims_wanted(state, pod):
                    check(state, RESOURCE_CLAIM, claim)
                    state.api.objects[RESOURCE_CLAIM, "default", claim["metadata"]["name"]] = claim
        except RefusedError:
            return False
        return True


@contextmanager
def _hidden(state: ClusterState, pods: Iterable[Manifest]) -> Iterator[None]:
    """The cluster without these pods and their claims, and afterwards as it was."""
    gone, objects = list(pods), state.api.objects
    keys, uids = [_key(pod) for pod in gone], {pod["metadata"].get("uid") for pod in gone}
    state.api.objects = {
        key: item
        for key, item in objects.items()
        if key not in keys and not (key[0] == RESOURCE_CLAIM and controller_of(item) in uids)
    }
    try:
        yield
    finally:
        state.api.objects = objects


def _one_more(workload: Manifest, number: int = 0) -> Manifest:
    spec = workload["spec"]
    template = copied(spec.get("template") or spec["leaderWorkerTemplate"]["leaderTemplate"])
    metadata = {**template["metadata"], "name": f"one-more-{number}", "namespace": "default"}
    metadata["uid"] = f"uid-{10**9 + number}"  # the youngest
    return {"metadata": metadata, "spec": template["spec"]}


def _is_elsewhere(state: ClusterState, pod: Manifest, node: Manifest) -> bool:
    placed = {**pod, "spec": {**pod["spec"], "nodeName": node["metadata"]["name"]}}
    return attached_elsewhere(state, placed) is not None


def _key(pod: Manifest) -> tuple[Kind, str, str]:
    return POD, pod["metadata"]["namespace"], pod["metadata"]["name"]


def _is_newest(pod: Manifest, workload: Manifest) -> bool:
    revision = workload["metadata"]["annotations"][_REVISION]
    return bool(pod["metadata"]["annotations"].get(_REVISION) == revision)


def old_pods(life: Life, workload: Manifest) -> list[Manifest]:
    """The model's pods of another revision than the newest, those that end included."""
    return [
        pod
        for pod in life.state.all(POD)
        if life.is_own(pod)
        and not is_terminal(pod)
        and pod["metadata"]["uid"] not in life.disturbed
        and not _is_newest(pod, workload)
    ]
