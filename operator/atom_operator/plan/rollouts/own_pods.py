"""The pods of one AtomDeployment in a rollout: which new ones load, which wait, which old ones end.

Pure. A replica without a place is one for which no node and no quota has room. It is told from one
that has a node and loads: the rollout waits for the latter, and never for the former. Called by the
choice of a rollout, by the choice of a rollback and by the deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atom_operator.domain import Observed, PodState


@dataclass(frozen=True, slots=True)
class OwnPods:
    """Count the pods of one AtomDeployment, those of the wanted revision apart."""

    unschedulable: str | None = None  # the scheduler's words about a pod without a node
    # Pods of the wanted revision that have a node; None: not counted. The supply counts them too:
    # no single request returns pods' states, their nodes and all requests there, so the two
    # readings differ in age, however fresh each is, and only a count in both shows it.
    arrived: int | None = None
    places: int = 0  # replicas for which the pods that have a node, of whatever group, would do
    serving: int = 0  # replicas of whatever revision all of whose pods are ready
    # Replicas of the wanted revision that have their nodes and are not ready, and groups of any: of
    # those an old one without a node takes the place of another that goes.
    loading: int = 0
    idle: int = 0  # replicas of other revisions that have their nodes and are not ready
    starting: int = 0  # pods of the wanted revision that are not ready, and may become so
    unclaimed: int = 0  # pods of the wanted revision whose ResourceClaims are refused
    old_unclaimed: int = 0  # pods of other revisions without their ResourceClaims
    leaving: int = 0  # ending pods that may still hold the resources that others wait for
    # The nodes of those of them that a ResourceQuota still counts.
    leaving_charged: tuple[str | None, ...] = ()


def own_pods(observed: Observed, revision: str) -> OwnPods:
    """Count the pods of a rollout to `revision`."""
    wanted = [pod for pod in observed.pods if pod.revision == revision]
    loading = [replica[0] for replica in replicas_of(observed.pods) if _loads(replica)]
    waited_for = sum(pod.revision == revision or pod.role is not None for pod in loading)
    return OwnPods(
        unschedulable=unschedulable(observed),
        arrived=sum(pod.placement.scheduled for pod in wanted),
        places=_places(observed),
        serving=sum(map(_serves, replicas_of(observed.pods))),
        loading=waited_for,
        idle=len(loading) - waited_for,
        starting=sum(not pod.ready and not pod.placement.lacks_claim for pod in wanted),
        unclaimed=len(observed.lacking_claims),
        old_unclaimed=sum(
            pod.placement.lacks_claim and pod.revision != revision for pod in observed.pods
        ),
        leaving=len(observed.leaving),
        leaving_charged=tuple(pod.node for pod in observed.leaving_charged),
    )


def unschedulable(observed: Observed) -> str | None:
    """Return why a pod finds no node, in the scheduler's words. Pods that a quota holds back are
    left out: no old pod makes room for them, since another's may be admitted instead."""
    messages = (
        pod.placement.unschedulable_message for pod in observed.pods if not pod.placement.gated
    )
    return next((message for message in messages if message), None)


def replicas_with_a_place(observed: Observed, pods_per_replica: int) -> int:
    """Count the replicas that have their nodes, of whatever revision; one that ends still has its
    place, which its successor takes."""
    running = observed.deployment
    if running is None:
        return 0
    replicas = [each for each in replicas_of(observed.pods) if len(each) >= pods_per_replica]
    placed = sum(all(pod.placement.scheduled for pod in replica) for replica in replicas)
    ending = sum(pod.node is not None for pod in observed.leaving)
    return min(running.desired, placed + ending // pods_per_replica)


def _places(observed: Observed) -> int:
    """Count the replicas for which the nodes have room beside others' pods: two halves of two
    groups are one. A pod that ends leaves its place to its successor, unless its node is silent."""
    silent = {pod.node for pod in observed.silent}
    nodes = [
        *(pod.placement.node for pod in observed.pods),
        *(pod.node for pod in observed.leaving),
    ]
    placed = sum(node is not None and node not in silent for node in nodes)
    return placed // (observed.records.running.nodes if observed.records.running is not None else 1)


def serves_in_every_place(observed: Observed) -> bool:
    """Return whether the revision that runs has rolled out as far as there are places: no pod of
    another one is left, as many replicas serve as had a place before it, and each of the others
    waits for a node or for room in a quota."""
    running = observed.deployment
    if running is None or not running.desired or not running.progress.up_to_date:
        return False
    before = running.notes.rollout.had_place if running.notes.rollout is not None else None
    pods = observed.pods
    if running.replicas > running.updated or any(p.revision != running.revision for p in pods):
        return False
    replicas = replicas_of(pods)
    serving = sum(map(_serves, replicas))
    unmade = running.desired - len(replicas)
    return (
        serving >= max(1, before or 0)
        and all(_serves(replica) or _has_no_place(replica) for replica in replicas)
        and (unmade <= 0 or running.refused_by_quota)
    )


def replicas_of(pods: Iterable[PodState]) -> Sequence[Sequence[PodState]]:
    """Return the pods of each replica: of a group the leader and its workers, by the leader's
    name."""
    found: Mapping[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        found[pod.leader_name].append(pod)
    return list(found.values())


def _serves(replica: Sequence[PodState]) -> bool:
    return all(pod.ready for pod in replica)


def _loads(replica: Sequence[PodState]) -> bool:
    return all(pod.placement.scheduled for pod in replica) and not _serves(replica)


def _has_no_place(replica: Sequence[PodState]) -> bool:
    return any(
        pod.placement.unschedulable_message or pod.placement.gated or pod.placement.lacks_claim
        for pod in replica
    )
