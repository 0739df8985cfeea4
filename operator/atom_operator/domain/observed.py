"""Observed state, reduced to the needs of decisions and conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from atom_operator import constants
from atom_operator.domain.objects import ChildKey, Manifest
from atom_operator.domain.origin import Origin
from atom_operator.domain.replica_capacity import Evidence, InspectedConfig
from atom_operator.domain.resources import Resources
from atom_operator.domain.rollout_state import PodRevision, Rollback, Rollout
from atom_operator.domain.spec_record import SpecRecord
from atom_operator.kinds import Kind


@dataclass(frozen=True, slots=True)
class ForeignEdit:
    """A field that a client other than we has set, by the name that it gave itself."""

    manager: str
    path: str


@dataclass(frozen=True, slots=True)
class OthersWrites:
    """Hold the fields of a workload that clients other than we have set."""

    edits: tuple[ForeignEdit, ...] = ()  # in its spec
    autoscaled: bool = False  # an autoscaler has the number of its replicas
    replicas_by: str | None = None  # another manager that has set its replicas
    contested: str | None = None  # the manager that contests them, and the remedy


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """Hold the report of a workload's controller about its rollout."""

    up_to_date: bool = True  # its controller has seen the latest spec
    stalled_message: str | None = None  # no progress within the deadline
    refused_message: str | None = None  # pods cannot be created: quota, admission
    deadline_seconds: int | None = None  # where only we keep it
    paused: bool = False  # its controller replaces no pods


@dataclass(frozen=True, slots=True)
class WorkloadNotes:
    """Hold our own notes on a workload, from the time when it was last written."""

    rollout: Rollout | None = None  # the strategy that is in effect
    rollback: Rollback | None = None  # why it does not run the spec's pods
    startup_budget_seconds: int | None = None  # of the revision that it runs
    spec_digest: str | None = None  # of the spec that it was written for
    default_image: str | None = None  # the operator's, if that spec named none
    origin: Origin | None = None  # of the revision that was asked for last; None from older ones


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """The Deployment as its controller reports it."""

    desired: int
    replicas: int
    updated: int
    ready: int
    available: int
    revision: str | None
    progress: WorkloadProgress = WorkloadProgress()
    notes: WorkloadNotes = WorkloadNotes()
    others: OthersWrites = OthersWrites()
    in_groups: bool = False  # a LeaderWorkerSet, whose replicas are groups of pods
    pods_agree: bool = True  # all of its pods are there, of its revision and ready, where we count

    @property
    def refused_by_quota(self) -> bool:
        """Return whether there may be room for its pods as soon as others have gone."""
        return "exceeded quota" in (self.progress.refused_message or "")

    @property
    def complete(self) -> bool:
        """Return whether every wanted pod is of the latest revision and available, and only ending
        pods are left of others. Ending groups stay in their controller's counts; their pods show
        the end."""
        if self.in_groups:
            return self.pods_agree and self.available >= self.desired
        counts = {self.updated, self.replicas, self.available}
        return self.progress.up_to_date and counts == {self.desired}


@dataclass(frozen=True, slots=True)
class PodHealth:
    """Describe how the containers of a pod fare."""

    problem: str | None = None  # last termination or waiting reason of one that is not ready
    restarts: int = 0  # of the container that was restarted most
    ready_since: datetime | None = None
    was_ready: bool = False  # and is no more


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Describe the node that a pod has or waits for, and the amounts that it takes there."""

    scheduled: bool = False
    unschedulable_message: str | None = None
    node: str | None = None
    gated: bool = False  # the scheduler does not look at it: a quota has not admitted it
    lacks_claim: bool = False  # its ResourceClaim is not made yet: no scheduler looks at it
    priority: int = 0  # by which the scheduler prefers it
    requests: Resources | None = None  # of one that finds no node
    charged: Resources | None = None  # its charge to a ResourceQuota


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Describe the devices of a pod."""

    resource: str | None = None  # of the devices that its engine asks for
    sick: tuple[str, ...] = ()  # its own ones, as its kubelet reports


@dataclass(frozen=True, slots=True)
class PodMarks:
    """Hold the labels and annotations that we write on a running pod."""

    deletion_cost: int = 0  # by which a ReplicaSet chooses among those that serve
    adapters: tuple[str, ...] = ()  # that its labels list
    adapters_digest: str | None = None  # of the list that it was last notified of


@dataclass(frozen=True, slots=True)
class PodState:
    """Hold one pod's state, reduced to the needs of conditions: each reader takes its part."""

    name: str
    ready: bool
    uid: str = ""
    role: str | None = None  # in a group of pods
    revision: str | None = None  # of its pod template
    created_at: datetime | None = None
    address: str | None = None  # of the engine's HTTP server
    health: PodHealth = PodHealth()
    placement: PodPlacement = PodPlacement()
    devices: PodDevices = PodDevices()
    marks: PodMarks = PodMarks()

    @property
    def serves(self) -> bool:
        """Return whether the pod has an HTTP server; a worker computes for a pod that has one."""
        return self.role != constants.ROLE_WORKER

    @property
    def leader_name(self) -> str:
        """Name the leader of the pod's group: LeaderWorkerSet names a worker by its leader's name
        and a number. A pod without a group leads itself."""
        return self.name if self.serves else self.name.rpartition("-")[0]

    @property
    def group_number(self) -> int | None:
        """Return the number of the group that the pod leads, with which its name ends; None if the
        name ends otherwise."""
        number = self.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class EndedPod:
    """A pod that is over and whose object is still there: evicted, refused by its node, completed.

    It serves nothing and holds nothing, so no number counts it."""

    name: str
    message: str  # the ender and its reason; empty if its status has none
    at: datetime | None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingPod:
    """A pod that is to end, and may hold devices until it has."""

    name: str
    node: str | None
    charged_until: datetime | None  # by a ResourceQuota; None: until it has gone


@dataclass(frozen=True, slots=True)
class SilentPod:
    """A pod whose node reports no more, so that it may run or not."""

    name: str
    node: str
    since: datetime | None  # the control plane took it for lost


@dataclass(frozen=True, slots=True)
class RefusedPods:
    """Hold the newest refusals of pods and of their ResourceClaims, by Events."""

    words: str | None = None  # why pods are not made, by newer words than the workload's
    at: datetime | None = None  # None if no Event has a time
    unclaimed: str | None = None  # why pods have no ResourceClaim, unless `words` report it


@dataclass(frozen=True, slots=True)
class Records:
    """Hold the facts that earlier passes have kept in objects of the cluster."""

    running: PodRevision | None = None  # the Deployment's present pods
    last_ready: PodRevision | None = None  # the last pods with which every replica served
    learned: tuple[Evidence, ...] = ()
    inspected: InspectedConfig | None = None
    accepted: SpecRecord | None = None  # the spec of the pods that the workload asks for
    specs: Mapping[str, SpecRecord] = field(default_factory=dict)  # of other pods, by revision


@dataclass(frozen=True, slots=True)
class Observed:
    """Hold the existing objects: owned children as manifests, and typed parts of the workload and
    pods."""

    children: Mapping[ChildKey, Manifest]
    deployment: DeploymentState | None  # of the Deployment or LeaderWorkerSet, the newest
    pods: tuple[PodState, ...]  # that have not ended
    records: Records = field(default_factory=Records)
    at: datetime | None = None  # the time of this look; None if nothing depends on it
    leaving: tuple[LeavingPod, ...] = ()
    unserved: frozenset[Kind] = frozenset()  # optional kinds that were looked for in vain
    workloads: Mapping[ChildKey, DeploymentState] = field(default_factory=dict)  # of both kinds
    ended: tuple[EndedPod, ...] = ()
    silent: tuple[SilentPod, ...] = ()  # of `pods`, and of those that are to end
    refused: RefusedPods = RefusedPods()

    def workload_of(self, kind: Kind) -> DeploymentState | None:
        return next((state for key, state in self.workloads.items() if key.kind == kind), None)

    @property
    def pods_in_force(self) -> PodRevision | None:
        """Return the workload's revision, as we rendered it if that is known; the last ready one if
        the workload was deleted."""
        running, recorded = self.deployment, self.records.last_ready
        if running is None or (recorded is not None and recorded.name == running.revision):
            return recorded
        return self.records.running

    @property
    def lacking_claims(self) -> tuple[PodState, ...]:
        """Return the pods of the workload's present revision whose ResourceClaims do not exist."""
        revision = self.deployment.revision if self.deployment is not None else None
        return tuple(
            pod for pod in self.pods if pod.placement.lacks_claim and pod.revision == revision
        )

    @property
    def leaving_charged(self) -> tuple[LeavingPod, ...]:
        """Return the pods that end and that a quota still counts."""
        return tuple(pod for pod in self.leaving if self._is_charged(pod.charged_until))

    @property
    def places_left_soon(self) -> int:
        """Count the pods that end on a node, and hold its devices until then. One that stays for
        long is on a lost node, and does not count."""
        return sum(pod.node is not None for pod in self.leaving_charged)

    @property
    def serving(self) -> Mapping[str, int]:
        """Count the replicas that serve, by revision. Without pods in sight the workload's own
        count is that of the revision that it asks for."""
        found = Counter(
            pod.revision for pod in self.pods if pod.ready and pod.serves and pod.revision
        )
        running = self.deployment
        if not self.pods and running is not None and running.revision and running.ready:
            return {running.revision: running.ready}
        return found

    def _is_charged(self, until: datetime | None) -> bool:
        return self.at is None or until is None or until >= self.at

    def retiring(self, kind: Kind) -> Mapping[ChildKey, DeploymentState]:
        """Return the workloads of another kind than `kind`, which replaces them."""
        return {key: state for key, state in self.workloads.items() if key.kind != kind}
