"""The controller of Deployments: a ReplicaSet per template, rolling updates within their bounds,
Recreate, pausing, the deadline, and the conditions by which all that is told.

After kubernetes/pkg/controller/deployment (rolling.go, recreate.go, sync.go, progress.go) of
1.34. What it does in several looks there it does in several calls here.
"""

from __future__ import annotations

from typing import Any

from atom_operator.domain import DEPLOYMENT, POD, Manifest
from atom_operator.kinds import REPLICA_SET
from tests.support.in_memory_cluster.replica_set import HASH_LABEL
from tests.support.in_memory_cluster.state import (
    ClusterState,
    condition_of,
    hash_of,
    is_terminal,
)
from tests.support.operator.merged_fields import copied

# Annotations of a Deployment that its ReplicaSet has of its own, or not.
_CONTROLLERS = ("deployment.kubernetes.io/", "kubectl.kubernetes.io/")
_REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MOST = "deployment.kubernetes.io/max-replicas"
_DEADLINE_SECONDS = 600
_COMPLETE = "NewReplicaSetAvailable"
_TIMED_OUT = "ProgressDeadlineExceeded"
_PAUSED = "DeploymentPaused"


def sync_deployments(state: ClusterState) -> None:
    for item in state.all(DEPLOYMENT):
        _Deployment(state, item).sync()


def newest_pods(state: ClusterState, item: Manifest) -> list[Manifest]:
    """The pods of a Deployment that are of its template as it is, oldest first."""
    sets = [one for one in state.owned(REPLICA_SET, item) if _hash(one) == _digest(item)]
    return [pod for one in sets for pod in state.owned(POD, one)]


class _Deployment:
    """One look at one Deployment."""

    def __init__(self, state: ClusterState, item: Manifest) -> None:
        self.state, self.item, self.spec = state, item, item["spec"]
        self.replicas: int = item["spec"].get("replicas", 1)
        owned = state.owned(REPLICA_SET, item)
        digest = _digest(item)
        self.new = next((one for one in owned if _hash(one) == digest), None)
        self.old = [one for one in owned if one is not self.new]
        self.rolls = (item["spec"].get("strategy") or {}).get("type") != "Recreate"
        self.made_new = self.only_scales = False

    def sync(self) -> None:
        if self.new is not None:
            own = self.item["metadata"].get("annotations") or {}
            given = {name: text for name, text in own.items() if not name.startswith(_CONTROLLERS)}
            self.new["metadata"]["annotations"].update(given)
        self.only_scales = bool(self.spec.get("paused")) or self._was_scaled()
        if self.only_scales:
            self._scale_all()
        elif self.rolls:
            self._roll()
        else:
            self._recreate()
        self._report()

    # --- ReplicaSets -------------------------------------------------------------------------

    @property
    def sets(self) -> list[Manifest]:
        return [*self.old, *([self.new] if self.new else [])]

    def _was_scaled(self) -> bool:
        return any(
            one["spec"]["replicas"]
            and int(one["metadata"]["annotations"][_DESIRED]) != self.replicas
            for one in self.sets
        )

    def _scale_all(self) -> None:
        """Scale what is there; of several ReplicaSets each by its share, and none under Recreate.

        One that has the size already keeps its annotation, so that this look is not the last of its
        kind (kubernetes#102551)."""
        running = [one for one in self.sets if one["spec"]["replicas"]]
        if len(running) <= 1:
            for one in running or ([self.new] if self.new else []):
                self._scale(one, self.replicas)
        elif self.new is not None and self._is_saturated(self.new):
            for one in self.old:
                self._scale(one, 0)
        elif self.rolls:
            self._scale_by_share(running)

    def _annotate(self, one: Manifest) -> None:
        one["metadata"]["annotations"] |= self._sizes()

    def _sizes(self) -> dict[str, str]:
        return {_DESIRED: str(self.replicas), _MOST: str(self.replicas + self._surge())}

    def _scale_by_share(self, running: list[Manifest]) -> None:
        allowed = self.replicas + self._surge() if self.replicas else 0
        left = allowed - sum(one["spec"]["replicas"] for one in running)
        # Among equals the newest grows first, and the oldest shrinks first.
        newest_first = sorted(running, key=_revision, reverse=left > 0)
        ordered = sorted(newest_first, key=lambda one: -one["spec"]["replicas"])
        sizes = [one["spec"]["replicas"] for one in ordered]
        for place, one in enumerate(ordered):
            share = self._share(one) if left else 0
            share = min(share, left) if left > 0 else max(share, left)
            left -= share
            sizes[place] += share
        sizes[0] = max(0, sizes[0] + left)
        for one, size in zip(ordered, sizes, strict=True):
            self._annotate(one)
            self._scale(one, size)

    def _share(self, one: Manifest) -> int:
        """Return the change of a ReplicaSet that keeps its part of the most that there may be."""
        size: int = one["spec"]["replicas"]
        if not self.replicas:
            return -size
        most_before = int(one["metadata"]["annotations"][_MOST])
        return _rounded(size * (self.replicas + self._surge()), most_before) - size

    def _is_saturated(self, one: Manifest) -> bool:
        desired = int(one["metadata"]["annotations"][_DESIRED])
        return bool(one["spec"]["replicas"] == self.replicas == desired == _available(one))

    def _scale(self, one: Manifest, replicas: int) -> bool:
        if one["spec"]["replicas"] == replicas:
            return False
        self._annotate(one)
        one["spec"]["replicas"] = replicas
        one["metadata"]["generation"] += 1
        self.state.api.touch(one)
        return True

    def _ensure_new(self, replicas: int) -> Manifest:
        if self.new is None:
            template = copied(self.spec["template"])
            digest = _digest(self.item)
            template["metadata"].setdefault("labels", {})[HASH_LABEL] = digest
            metadata = self.item["metadata"]
            manifest = {
                "metadata": {
                    "name": f"{metadata['name']}-{digest}",
                    "namespace": metadata["namespace"],
                    "labels": dict(template["metadata"]["labels"]),
                    "annotations": self._sizes(),
                },
                "spec": {"replicas": replicas, "template": template},
            }
            self.new = self.state.create(REPLICA_SET, manifest, self.item)
            self.made_new = True
        return self.new

    # --- strategies --------------------------------------------------------------------------

    def _recreate(self) -> None:
        scaled = [self._scale(one, 0) for one in self.old]
        if any(scaled):
            return
        pods = [pod for one in self.old for pod in self.state.owned(POD, one)]
        if any(not is_terminal(pod) for pod in pods):
            return
        self._scale(self._ensure_new(self.replicas), self.replicas)

    def _roll(self) -> None:
        before = sum(one["spec"]["replicas"] for one in self.old)
        most = self.replicas + self._surge()
        room = max(0, min(most - before, self.replicas))
        made = self.new is None
        new = self._ensure_new(room)
        if made:
            return
        if new["spec"]["replicas"] > self.replicas:
            self._scale(new, self.replicas)
            return
        more = min(most - before - new["spec"]["replicas"], self.replicas - new["spec"]["replicas"])
        if more > 0:
            self._scale(new, new["spec"]["replicas"] + more)
            return
        self._shrink_old(new, before)

    def _shrink_old(self, new: Manifest, before: int) -> None:
        least = self.replicas - self._unavailable()
        new_unready = new["spec"]["replicas"] - _available(new)
        spare = before + new["spec"]["replicas"] - least - new_unready
        for one in self.old:  # those that do not serve first
            unready = one["spec"]["replicas"] - _available(one)
            gone = max(0, min(unready, spare))
            self._scale(one, one["spec"]["replicas"] - gone)
            spare -= gone
        spare = sum(map(_available, self.sets)) - least
        for one in self.old:
            gone = max(0, min(one["spec"]["replicas"], spare))
            self._scale(one, one["spec"]["replicas"] - gone)
            spare -= gone

    def _surge(self) -> int:
        return _bound(self._steps().get("maxSurge", "25%"), self.replicas, up=True)

    def _unavailable(self) -> int:
        if not self.rolls or not self.replicas:
            return 0
        away = _bound(self._steps().get("maxUnavailable", "25%"), self.replicas, up=False)
        if not away and not self._surge():
            away = 1
        return min(away, self.replicas)

    def _steps(self) -> Manifest:
        if not self.rolls:
            return {"maxSurge": 0}
        return dict((self.spec.get("strategy") or {}).get("rollingUpdate") or {})

    # --- status ------------------------------------------------------------------------------

    def _number(self) -> None:
        """Give the template in force the highest number, on its ReplicaSet and on the
        Deployment."""
        if self.new is None:
            return
        highest = max((_revision(one) for one in self.old), default=0)
        if _revision(self.new) <= highest:
            self.new["metadata"]["annotations"][_REVISION] = str(highest + 1)
            self.state.api.touch(self.new)
        annotations = self.item["metadata"].setdefault("annotations", {})
        if annotations.get(_REVISION) != str(_revision(self.new)):
            annotations[_REVISION] = str(_revision(self.new))
            self.state.api.touch(self.item)

    def _report(self) -> None:
        self._number()
        counts = {name: sum(_count(one, name) for one in self.sets) for name in _COUNTS}
        updated = _count(self.new, "replicas") if self.new else 0
        before: Manifest = self.item.get("status") or {}
        status: dict[str, Any] = {
            **counts,
            "updatedReplicas": updated,
            "observedGeneration": self.item["metadata"]["generation"],
            "conditions": before.get("conditions") or [],
        }
        least = self.replicas - self._unavailable()
        served = counts["availableReplicas"] >= least
        words = ("MinimumReplicasAvailable", "Deployment has minimum availability.")
        lacks = ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        self._say(status, "Available", str(served), words if served else lacks)
        self._report_found(status)
        if not self.only_scales:  # a look that only scales estimates no progress and no failure
            self._report_progress(status, before)
            self._report_failure(status)
        status["conditions"].sort(key=lambda one: str(one["type"]))
        self.state.set_status(self.item, status)
        self._forget_sets(complete=self._is_complete(status))

    def _report_failure(self, status: Manifest) -> None:
        newest_first = reversed(self.sets)
        failure = next(
            (found for one in newest_first if (found := condition_of(one, "ReplicaFailure"))), None
        )
        kept = [one for one in status["conditions"] if one["type"] != "ReplicaFailure"]
        status["conditions"] = [*kept, *([dict(failure)] if failure else [])]

    def _is_complete(self, status: Manifest) -> bool:
        counts = {status["updatedReplicas"], status["replicas"], status["availableReplicas"]}
        return counts == {self.replicas}

    def _report_found(self, status: Manifest) -> None:
        """Tell a pause and its end, but not over a missed deadline, and the ReplicaSet that is
        made, or found without any word of progress."""
        known = condition_of(self.item, "Progressing") or {}
        told, paused = known.get("reason"), bool(self.spec.get("paused"))
        if paused and told not in (_PAUSED, _TIMED_OUT):
            self._say(status, "Progressing", "Unknown", (_PAUSED, "Deployment is paused"))
        elif not paused and told == _PAUSED:
            words = ("DeploymentResumed", "Deployment is resumed")
            self._say(status, "Progressing", "Unknown", words)
        if self.made_new:
            words = ("NewReplicaSetCreated", f'Created new replica set "{self._new_name}"')
            self._say(status, "Progressing", "True", words)
        elif self.new is not None and condition_of({"status": status}, "Progressing") is None:
            words = ("FoundNewReplicaSet", f'Found new replica set "{self._new_name}"')
            self._say(status, "Progressing", "True", words)

    @property
    def _new_name(self) -> str:
        return str((self.new or self.item)["metadata"]["name"])

    def _report_progress(self, status: Manifest, before: Manifest) -> None:
        known, name = condition_of({"status": status}, "Progressing"), self._new_name
        whole = status["replicas"] == status["updatedReplicas"]
        if known is None or (whole and known["reason"] == _COMPLETE):
            return
        if self._is_complete(status):
            words = f'ReplicaSet "{name}" has successfully progressed.'
            self._say(status, "Progressing", "True", (_COMPLETE, words))
        elif _moved(before, status):
            words = f'ReplicaSet "{name}" is progressing.'
            self._say(status, "Progressing", "True", ("ReplicaSetUpdated", words), again=True)
        else:
            self._keep_deadline(status, known, name)

    def _keep_deadline(self, status: Manifest, known: Manifest, name: str) -> None:
        if known["reason"] in (_COMPLETE, _TIMED_OUT):
            return
        deadline = self.spec.get("progressDeadlineSeconds", _DEADLINE_SECONDS)
        waited = self.state.seconds_since(known["lastUpdateTime"])
        if waited <= deadline:
            self.state.look_after(deadline - waited + 1)
            return
        words = f'ReplicaSet "{name}" has timed out progressing.'
        self._say(status, "Progressing", "False", (_TIMED_OUT, words))

    def _say(
        self,
        status: Manifest,
        kind: str,
        value: str,
        words: tuple[str, str],
        *,
        again: bool = False,
    ) -> None:
        """Set a condition, unless it has that value for that reason already; `again` renews it."""
        known = condition_of({"status": status}, kind)
        same = known is not None and known["status"] == value
        if known is not None and same and known["reason"] == words[0] and not again:
            return
        stamp = self.state.stamp()
        found = {
            "type": kind,
            "status": value,
            "reason": words[0],
            "message": words[1],
            "lastUpdateTime": stamp,
            "lastTransitionTime": known["lastTransitionTime"] if known and same else stamp,
        }
        kept = [one for one in status["conditions"] if one["type"] != kind]
        status["conditions"] = [*kept, found]

    def _forget_sets(self, *, complete: bool) -> None:
        limit = self.spec.get("revisionHistoryLimit", 10)
        idle = [one for one in self.old if not one["spec"]["replicas"]]
        if complete:
            for one in idle[: max(0, len(idle) - limit)]:
                self.state.remove(REPLICA_SET, one)


_COUNTS = ("replicas", "readyReplicas", "availableReplicas")


def _moved(before: Manifest, status: Manifest) -> bool:
    """Whether the rollout is further than at the last look."""
    old = status["replicas"] - status["updatedReplicas"]
    return (
        status["updatedReplicas"] > before.get("updatedReplicas", 0)
        or old < before.get("replicas", 0) - before.get("updatedReplicas", 0)
        or any(status[name] > before.get(name, 0) for name in _COUNTS[1:])
    )


def _digest(item: Manifest) -> str:
    return f"{hash_of(item['spec']['template']):08x}"


def _hash(one: Manifest) -> str:
    return str(one["spec"]["template"]["metadata"]["labels"][HASH_LABEL])


def _revision(one: Manifest) -> int:
    return int(one["metadata"]["annotations"].get(_REVISION, 0))


def _available(one: Manifest) -> int:
    return _count(one, "availableReplicas")


def _count(one: Manifest, name: str) -> int:
    return int((one.get("status") or {}).get(name, 0))


def _rounded(share: int, of: int) -> int:
    """Round a quotient of positive numbers, halves up, as Go does."""
    return (2 * share + of) // (2 * of)


def _bound(value: Any, replicas: int, *, up: bool) -> int:
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = replicas * int(text[:-1])
    return -(-share // 100) if up else share // 100
