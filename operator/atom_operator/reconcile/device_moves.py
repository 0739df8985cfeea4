"""Moves pods off sick devices: how long each has waited, whose turn it is, where there is room.

A device that is reported sick for some minutes is, and one that was for a moment is not (a plugin
was restarted): only earlier looks can tell, so the time of the first one is remembered, and lost
with the process. A pod goes only if its successor is admitted and the nodes have a place for it,
and in the whole cluster one at a time: two that count on one place would both lose theirs. Called
by the reconciler, which evicts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import (
    DeviceFindings,
    ObjectKey,
    Observed,
    PodState,
    SickPod,
)
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.resources import Resources, requests_of
from atom_operator.plan.devices.claimed_devices import with_claimed
from atom_operator.plan.devices.other_pods import without_forbidden
from atom_operator.plan.devices.sick_claims import (
    claim_of_pods,
    lacking_count,
    said_by_driver,
    without_devices_of,
)
from atom_operator.plan.devices.sick_devices import (
    group_of,
    hindrance,
    nodes_with_devices_out,
    pods_with_devices,
    sick_pods,
)
from atom_operator.plan.inventory import PodsAsked, survey
from atom_operator.plan.placement import placement_of
from atom_operator.plan.room import can_take_one, shortage
from atom_operator.pods.accelerator_names import accelerator_in
from atom_operator.reconcile.prerequisites import volume_places
from atom_operator.reconcile.successors import Departure, Successors, ask_for_successors

# A kubelet takes devices for sick while their plugin is away, for five minutes; then it has none.
_LASTS = timedelta(minutes=6)
_OFFERED = (
    "it stays while it serves, because its driver still offers these devices to new pods: a taint "
    "in the driver's ResourceSlice would move it"
)
# A pod that was evicted has ended by then, and its successor has a node or waits for one.
_MOST_UNDER_WAY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A move that has begun: whose, of which pod, and when."""

    key: ObjectKey
    uid: str
    at: datetime


class DeviceMoves:
    """Remembers since when the pods of AtomDeployments have sick devices, and which one is on its
    way."""

    def __init__(self) -> None:
        self._since: dict[ObjectKey, dict[str, datetime]] = {}
        self._under_way: _UnderWay | None = None

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._since.pop(key, None)
        if self._under_way is not None and self._under_way.key == key:
            self._under_way = None

    def forget_all(self) -> None:
        """Forget everything at a new term: devices may have been well meanwhile."""
        self._since.clear()
        self._under_way = None

    async def look(
        self, port: ClusterPort, fleet: FleetReader, key: ObjectKey, observed: Observed
    ) -> DeviceFindings:
        """Find the pods with sick devices, and the ones to evict now."""
        pods, now = pods_with_devices(observed), observed.at
        self._end_move(key, observed)
        if not pods or now is None or observed.records.running is None:
            self._since.pop(key, None)
            return DeviceFindings()
        sick = await _sick(fleet, key, pods, observed)
        since = self._remember(key, sick, now)
        if not sick:
            return DeviceFindings()
        lasting = [pod for pod in sick if not pod.in_doubt and now - since[pod.uid] >= _LASTS]
        first = lasting[0] if lasting else sick[0]
        told = DeviceFindings(
            sick=(first, *(pod for pod in sick if pod is not first)),
            since=since[first.uid].strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        if first.in_doubt:
            outcome = "which of them has the sick one nobody says, so none is moved"
            return replace(told, reason=Reason.DEVICE_IN_DOUBT, outcome=outcome)
        if not lasting:
            minutes = int(_LASTS.total_seconds() // 60)
            outcome = f"it is moved when that lasts for {minutes} minutes"
            return replace(told, reason=Reason.DEVICE_UNHEALTHY, outcome=outcome)
        if first.offered and first.serves:
            return replace(told, reason=Reason.DEVICE_UNHEALTHY, outcome=_OFFERED)
        waits = hindrance(observed, sick) or self._turn(now)
        if waits is not None:
            outcome = f"it is moved once {waits}"
            return replace(told, reason=Reason.DEVICE_UNHEALTHY, outcome=outcome)
        going, template = _going(observed, first), observed.records.running.template
        departure = Departure(going, going, len(going))
        successors = await ask_for_successors(port, key, departure, template)
        words = successors.refusal or successors.unknown
        if words is not None:
            outcome = f"it cannot be moved, because its successor is refused: {words}"
            return replace(told, reason=Reason.SUCCESSOR_REFUSED, outcome=outcome)
        asked = _asked(key, observed, going, successors)
        volumes = await volume_places(ClaimReader(port), key.namespace, asked.pod_spec)
        asked = replace(asked, volumes=volumes)
        lacking = await _lacking(fleet, observed, going, asked, offered=first.offered)
        if lacking is not None:
            return replace(told, reason=Reason.NO_OTHER_PLACE, outcome=lacking)
        # What called it sick may be a minute old, and a device that is well again frees a place.
        still = await _sick(fleet, key, pods, observed, Age.NOW)
        if all(pod.uid != first.uid or pod.in_doubt for pod in still):
            outcome = "it stays, because its devices are no longer called so"
            return replace(told, reason=Reason.DEVICE_UNHEALTHY, outcome=outcome)
        self._under_way = _UnderWay(key, first.uid, now)
        outcome = "it is evicted, and its successor has a place"
        return replace(told, reason=Reason.POD_MOVED, outcome=outcome, move=first)

    def refused(self, findings: DeviceFindings, words: str) -> DeviceFindings:
        """Return the findings with a refused move, which is tried again."""
        self._under_way = None
        outcome = f"it stays for now: {words}"
        return replace(findings, reason=Reason.MOVE_REFUSED, outcome=outcome, move=None)

    def _remember(
        self, key: ObjectKey, sick: tuple[SickPod, ...], now: datetime
    ) -> dict[str, datetime]:
        before = self._since.pop(key, {})
        since = {pod.uid: before.get(pod.uid, now) for pod in sick}
        if since:
            self._since[key] = since
        return since

    def _end_move(self, key: ObjectKey, observed: Observed) -> None:
        """End a move once the pod has gone and no pod of its AtomDeployment lacks a node."""
        move = self._under_way
        if move is None or move.key != key:
            return
        if all(pod.uid != move.uid and pod.placement.scheduled for pod in observed.pods):
            self._under_way = None

    def _turn(self, now: datetime) -> str | None:
        move = self._under_way
        if move is None or now - move.at >= _MOST_UNDER_WAY:
            return None
        return f"a pod of {move.key.namespace}/{move.key.name} has moved"


async def _sick(
    fleet: FleetReader,
    key: ObjectKey,
    pods: tuple[PodState, ...],
    observed: Observed,
    age: Age = Age.KNOWN,
) -> tuple[SickPod, ...]:
    """Read of nodes and pods no more than is needed: most of the time every device is well."""
    nodes = await fleet.nodes(age) or Nodes()
    found = nodes.once("by name", lambda: {node["metadata"]["name"]: node for node in nodes})
    requested: dict[str, Resources] = {}
    if nodes_with_devices_out(pods, found):
        placed = await fleet.pods(age)
        requested = dict(placed.requested) if placed is not None else {}
    template = observed.records.running.template if observed.records.running is not None else {}
    placement = placement_of(template.get("spec") or {})
    picture = await fleet.devices(age) if claim_of_pods(observed) is not None else None
    by_driver = said_by_driver(pods, key.namespace, picture) if picture is not None else None
    return sick_pods(pods, found, requested, placement, by_driver)


def _going(observed: Observed, sick: SickPod) -> tuple[PodState, ...]:
    """Return the pod itself first, and its group."""
    (pod,) = [each for each in observed.pods if each.uid == sick.uid]
    names = group_of(pod, observed.pods)
    others = (each for each in observed.pods if each.name in names and each is not pod)
    return (pod, *others)


def _asked(
    key: ObjectKey, observed: Observed, going: tuple[PodState, ...], successors: Successors
) -> PodsAsked:
    """Ask for pods as admission leaves them, or as large as those before where a quota has no room
    for both."""
    template = observed.records.running.template if observed.records.running is not None else {}
    first, claimed = going[0], claim_of_pods(observed)
    held = accelerator_in(first.placement.charged or {}, first.devices.resource)
    made = successors.admitted[0] if successors.admitted else template
    at_least: Counter[str] = Counter()
    for pod in successors.admitted:
        at_least |= requests_of(pod["spec"])
    if len(successors.admitted) < len(going):
        for old in going:
            at_least |= Counter(_requests(old))
    if claimed is not None and claimed.claim is not None:
        at_least[claimed.claim.resource_name] = claimed.count
    return PodsAsked(
        key,
        held[0] if held is not None else None,
        made["spec"],
        labels=(made.get("metadata") or {}).get("labels") or {},
        at_least=at_least,
    )


async def _lacking(
    fleet: FleetReader,
    observed: Observed,
    going: tuple[PodState, ...],
    asked: PodsAsked,
    *,
    offered: bool,
) -> str | None:
    """Return why no node takes a successor of the pod, or of its whole group, once that has gone,
    or None. `offered`: the pods' own devices must not be counted again, though they would be
    free."""
    nodes, placed = await fleet.nodes(Age.NOW), await fleet.pods(Age.NOW)
    if nodes is None or placed is None:
        return "the operator may not read nodes, so it knows of no other place"
    claimed = claim_of_pods(observed)
    if claimed is not None:
        picture = await fleet.devices(Age.NOW)
        unknown = lacking_count(picture, claimed)
        if unknown is not None or picture is None or claimed.claim is None:
            return unknown
        picture = without_devices_of(picture, going) if offered else picture
        nodes, placed = with_claimed(nodes, placed, picture, claimed.claim)
    gone = placed.without(asked.key, frozenset(pod.name for pod in going))
    pods = observed.records.running.nodes if observed.records.running is not None else 1
    supply = without_forbidden(survey(nodes, gone, asked), nodes, gone.pods, asked)
    supply = replace(supply, pods_per_replica=pods)
    return None if can_take_one(supply) is not None else shortage(supply)


def _requests(pod: PodState) -> Resources:
    """Return the pod's requests at admission, by its node's names of resources."""
    return {
        name.removeprefix("requests."): count
        for name, count in (pod.placement.charged or {}).items()
        if name.startswith("requests.")
    }
