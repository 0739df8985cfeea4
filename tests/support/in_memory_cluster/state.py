"""ClusterState: the objects, the clock and what is due when; what every controller works on.

Controllers find objects here, write them through it (so that each write has a version, as watches
need), and say when they want to look again. Knows no controller.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from atom_operator.domain import EVENT, POD, Manifest
from atom_operator.kinds import Kind
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.merged_fields import copied

_LAST_RETRY_SECONDS = 300.0
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# Says why an object may not be created; None lets it pass.
Policy = Callable[[Kind, Manifest], str | None]


@dataclass(frozen=True)
class SickDevices:
    """Devices of one node by their numbers; `told` by its kubelet, and whether engines on them
    `fail`. Of claimed ones: `kept_off` new pods by a taint, by being published no more, or not."""

    numbers: frozenset[int]
    told: bool
    fail: bool
    kept_off: str = "taint"


@dataclass
class ClusterState:
    """`api` has the objects; `time` is seconds since START."""

    api: FakeCluster
    time: float = 0.0
    policies: list[Policy] = field(default_factory=list)  # of admission webhooks
    silent_policy: frozenset[str] = frozenset()  # kinds whose webhook nobody answers for
    sidecars: list[Manifest] = field(default_factory=list)  # that a webhook puts into every pod
    queue: int | None = None  # pods that it admits; None where pods are in no queue
    lost: set[str] = field(default_factory=set)  # nodes whose kubelet is silent
    draining: set[str] = field(default_factory=set)
    sick: dict[str, SickDevices] = field(default_factory=dict)  # by node
    load: dict[str, float] = field(default_factory=dict)  # of a workload, in replicas
    notes: dict[tuple[str, str], Any] = field(default_factory=dict)  # of controllers, by uid
    _due: list[float] = field(default_factory=list)
    names: int = 0  # that have been given out

    # --- the clock ---------------------------------------------------------------------------

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time)

    def stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def seconds_since(self, stamp: str | None) -> float:
        """Count from a time that an object carries; 0 from none."""
        if stamp is None:
            return 0.0
        then = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
        return (self.now() - then).total_seconds()

    def look_after(self, seconds: float) -> None:
        """Somebody wants to look again then, whether anything happens until then or not."""
        heapq.heappush(self._due, self.time + max(1.0, seconds))

    def next_due(self) -> float | None:
        """The next time at which somebody wants to look."""
        while self._due and self._due[0] <= self.time:
            heapq.heappop(self._due)
        return self._due[0] if self._due else None

    # --- objects -----------------------------------------------------------------------------

    def all(self, kind: Kind) -> list[Manifest]:
        """The stored objects of a kind, oldest first."""
        return [item for key, item in self.api.objects.items() if key[0] == kind]

    def owned(self, kind: Kind, owner: Manifest) -> list[Manifest]:
        """Those that `owner` controls."""
        uid = owner["metadata"]["uid"]
        return [item for item in self.all(kind) if controller_of(item) == uid]

    def create(self, kind: Kind, manifest: Manifest, owner: Manifest | None = None) -> Manifest:
        """Store a new object, with what the API server adds to it."""
        number = self.api.version()
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **copied(manifest)}
        metadata = made["metadata"]
        metadata.setdefault("namespace", "default")
        metadata |= {
            "uid": f"uid-{number}",
            "resourceVersion": number,
            "creationTimestamp": self.stamp(),
            "generation": 1,
        }
        if owner is not None:
            metadata["ownerReferences"] = [reference_to(owner)]
        self.api.objects[kind, metadata["namespace"], metadata["name"]] = made
        return made

    def unused_name(self, prefix: str) -> str:
        """A name that no object had before."""
        self.names += 1
        return f"{prefix}-{self.names:04}"

    def remove(self, kind: Kind, item: Manifest) -> None:
        metadata = item["metadata"]
        self.api.objects.pop((kind, metadata["namespace"], metadata["name"]), None)

    def set_status(self, item: Manifest, status: Manifest) -> None:
        """Write a status, unless it is there already."""
        if item.get("status") != status:
            item["status"] = status
            self.api.touch(item)

    def record(self, item: Manifest, reason: str, message: str, kind: str = "Warning") -> None:
        """An Event about an object; one for the same reason is counted, as those that are alike
        are."""
        metadata = item["metadata"]
        name = f"{metadata['name']}.{reason.lower()}"
        found = self.api.objects.get((EVENT, metadata["namespace"], name))
        if found is not None and found["involvedObject"]["uid"] == metadata["uid"]:
            found["message"] = message
            found["count"] += 1
            found["lastTimestamp"] = self.stamp()
            return
        about = {"kind": item["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        namespace = metadata["namespace"]
        event = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {**about, "namespace": namespace},
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": self.stamp(),
            "lastTimestamp": self.stamp(),
        }
        self.create(EVENT, event)

    def first_note(self, item: Manifest, name: str, value: Any) -> Any:
        """What a controller has noted about an object: `value`, if this is the first time."""
        return self.notes.setdefault((item["metadata"]["uid"], name), value)

    def noted(self, item: Manifest, name: str) -> Any:
        """What has been noted; None where nothing has."""
        return self.notes.get((item["metadata"]["uid"], name))

    def note(self, item: Manifest, name: str, value: Any) -> None:
        self.notes[item["metadata"]["uid"], name] = value

    def may_try(self, item: Manifest) -> bool:
        """Whether a controller that was refused may try again."""
        return bool(self.time >= self.first_note(item, "tries again at", 0.0))

    def try_again(self, item: Manifest, first_seconds: float) -> None:
        """After a while that grows with every refusal, as in the queues of controllers."""
        tries = self.first_note(item, "refusals", 0)
        self.note(item, "refusals", tries + 1)
        seconds = min(first_seconds * 2**tries, _LAST_RETRY_SECONDS)
        self.note(item, "tries again at", self.time + seconds)
        self.look_after(seconds)

    # --- pods --------------------------------------------------------------------------------

    def is_told(self, pod: Manifest) -> bool:
        """Whether a test tells what becomes of it."""
        return pod["metadata"]["uid"] in self.api.told

    def delete_pod(self, pod: Manifest) -> None:
        """Ask for a pod's end: it is gone once its kubelet says so, at once without a node."""
        if pod["metadata"].get("deletionTimestamp"):
            return
        if not pod["spec"].get("nodeName") or is_terminal(pod):
            self.remove(POD, pod)
            return
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        ends = self.now() + timedelta(seconds=grace)
        pod["metadata"]["deletionTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["metadata"]["deletionGracePeriodSeconds"] = grace
        self.api.touch(pod)


def active(pods: Iterable[Manifest]) -> list[Manifest]:
    """Those that count for their controllers: neither ended nor to end."""
    return [
        item
        for item in pods
        if not is_terminal(item) and not item["metadata"].get("deletionTimestamp")
    ]


def is_terminal(pod: Manifest) -> bool:
    """Whether its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_ready(pod: Manifest) -> bool:
    found = condition_of(pod, "Ready")
    return found is not None and found["status"] == "True"


def condition_of(item: Manifest, kind: str) -> Manifest | None:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


def with_condition(status: Manifest, found: Manifest) -> Manifest:
    """The status with this condition in place of the one of its type."""
    kept = [one for one in status.get("conditions") or () if one["type"] != found["type"]]
    return {**status, "conditions": [*kept, found]}


def controller_of(item: Manifest) -> str | None:
    """The uid of the object's controller."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return None


def hash_of(value: Any) -> int:
    """A number of what JSON can say, the same in every process."""
    return zlib.crc32(msgspec.json.encode(value, order="sorted"))


def reference_to(owner: Manifest) -> Manifest:
    """What an object says of its controller."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
