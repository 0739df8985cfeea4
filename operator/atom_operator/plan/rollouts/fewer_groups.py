"""A number of groups that falls while one of those that stay does not serve. Pure.

The controller of LeaderWorkerSets ends the groups of the highest numbers, whichever serve
(https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#deployment-and-scaling-guarantees).
So the number falls once as many of those that stay serve; at once if one of them waits for a place
or for room in a quota, which one that goes may have. An autoscaler asks for fewer at any time, so
it has to know the fewest beforehand. Called by reconcile/roll_out.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from atom_operator.domain import DeploymentState, Observed, PodState
from atom_operator.plan.quota import quota_refusal
from atom_operator.plan.rollouts.own_pods import replicas_of


def groups_to_keep(observed: Observed, revision: str, replicas: int, size: int) -> int:
    """Return the number of groups of `size` pods to ask for where the spec asks for `replicas`: the
    present one while fewer groups would serve than do now, and than are asked for."""
    running = observed.deployment
    if running is None or not running.in_groups or running.desired <= replicas:
        return replicas
    if running.revision != revision or any(pod.revision != revision for pod in observed.pods):
        return replicas  # of a rollout the last groups are the new ones
    return replicas if _may_fall(observed, running, replicas, size) else running.desired


def fewest_groups(observed: Observed, size: int) -> int:
    """Return the number of groups of `size` pods below which an autoscaler may not go: those above
    it serve in the stead of some below. 0: any."""
    running = observed.deployment
    if running is None or not running.in_groups:
        return 0
    fewest = running.desired
    while fewest > 1 and _may_fall(observed, running, fewest - 1, size):
        fewest -= 1
    return fewest if fewest > 1 else 0


def groups_awaited(observed: Observed, size: int) -> tuple[int, ...]:
    """Return the numbers of the wanted groups that do not serve."""
    running, groups = observed.deployment, _by_number(observed)
    wanted = range(running.desired if running is not None else 0)
    return tuple(number for number in wanted if not _serves(groups.get(number, []), size))


def _may_fall(observed: Observed, running: DeploymentState, replicas: int, size: int) -> bool:
    """Return whether as many groups serve if only the first ones stay, or one of those that go may
    leave its place to one that stays."""
    groups = _by_number(observed)
    serving = {number for number, group in groups.items() if _serves(group, size)}
    stay = set(range(replicas))
    if len(serving & stay) >= min(replicas, len(serving)):
        return True
    lacking = (pod for number in stay - serving for pod in groups.get(number, ()))
    going = [pod for number in groups.keys() - stay for pod in groups[number]]
    return any(map(_waits_for_a_place, lacking)) or _makes_room(running, going)


def _by_number(observed: Observed) -> Mapping[int, list[PodState]]:
    """Return the pods of each group, by the number at the end of its leader's name."""
    found: dict[int, list[PodState]] = {}
    for group in replicas_of(observed.pods):
        leader = next((pod for pod in group if pod.serves), None)
        number = leader.group_number if leader is not None else None
        if number is not None:
            found[number] = list(group)
    return found


def _makes_room(running: DeploymentState, going: list[PodState]) -> bool:
    """Return whether a quota that refuses a pod would take it once those that go have gone."""
    charged = [pod.placement.charged for pod in going if pod.placement.charged]
    refusal = quota_refusal(running.progress.refused_message, charged)
    return refusal is not None and refusal.has_room_after(len(going))


def _serves(group: list[PodState], size: int) -> bool:
    return len(group) == size and all(pod.ready for pod in group)


def _waits_for_a_place(pod: PodState) -> bool:
    placement = pod.placement
    return placement.unschedulable_message is not None or placement.gated or placement.lacks_claim
