"""The kubelets: what becomes of a pod on its node, from its admission there to its end.

A pod's image decides how it fares: BAD cannot serve and ends again and again, TYPO cannot be
pulled. Evictions and rejections leave a pod that has ended (phase Failed, with its reason) as real
kubelets do; who made it makes another. Nothing here looks at what the pods are for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from atom_operator.domain import POD, Manifest
from tests.support.in_memory_cluster.claims import attached_elsewhere
from tests.support.in_memory_cluster.devices.device_manager import (
    devices_of,
    ends_engine,
    with_health,
)
from tests.support.in_memory_cluster.group_engines import missing_rank
from tests.support.in_memory_cluster.secrets import misconfigured, unmounted, variables
from tests.support.in_memory_cluster.state import (
    ClusterState,
    condition_of,
    is_terminal,
    with_condition,
)

BAD, TYPO = "bad", "typo"  # in the name of an image
_CRASH_SECONDS = 10.0
_MOUNT_RETRY_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 10.0, 300.0
_REJECTED = (
    "Allocate failed due to no healthy devices present; cannot allocate "
    "unhealthy devices amd.com/gpu, which is unexpected"
)


def always(_pod: Manifest) -> bool:
    return True


def completed(_pod: Manifest) -> tuple[int, str]:
    """How a Job's pod ends unless a test says otherwise: well, without a word."""
    return 0, ""


@dataclass
class Kubelets:
    """How long things take, and which nodes reject what the scheduler sends."""

    state: ClusterState
    load_seconds: float = 60.0
    end_seconds: float = 10.0
    job_seconds: float = 30.0
    rejecting: set[str] = field(default_factory=set)
    most_restarts: int | None = None  # where the count has to come to an end
    strict_secrets: bool = False  # a Secret that is not among the objects is missed
    run: Callable[[Manifest], tuple[int, str]] = completed  # exit code and message of Jobs' pods
    answers: Callable[[Manifest], bool] = always  # whether an engine that has loaded is ready
    _addresses: int = 0
    _rejections: int = 0

    def sync(self) -> None:
        for pod in self.state.all(POD):
            node = pod["spec"].get("nodeName")
            if not node or node in self.state.lost:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                self._end(pod)
            elif not is_terminal(pod) and not self.state.is_told(pod):
                self._go_on(pod)

    def environment(self, pod: Manifest) -> dict[str, str]:
        """What a Job's pod was given of Secrets when it started."""
        found: dict[str, str] = self.state.noted(pod, "environment")
        return found

    def evict(self, pod: Manifest, message: str) -> None:
        """Under pressure, or because an emptyDir is over its limit: the pod has ended."""
        self._fail(pod, "Evicted", message)
        self.state.record(pod, "Evicted", message)

    # --- one pod -----------------------------------------------------------------------------

    def _end(self, pod: Manifest) -> None:
        asked = self.state.first_note(pod, "ends since", self.state.time)
        if self.state.time - asked >= self.end_seconds:
            self.state.remove(POD, pod)
        else:
            self.state.look_after(asked + self.end_seconds - self.state.time)

    def _go_on(self, pod: Manifest) -> None:
        status = pod.get("status") or {}
        if not status.get("startTime"):
            if pod["spec"]["nodeName"] in self.rejecting:
                self._reject(pod)
                return
            status = {**status, "startTime": self.state.stamp()}
        waiting = self._waits_for(pod)
        if waiting is not None:
            self._write(pod, _not_running(pod, status, *waiting))
            return
        if not status.get("podIP"):
            self._addresses += 1
            place = divmod(self._addresses, 250)
            status = {**status, "podIP": f"10.1.{place[0]}.{place[1] + 1}"}
        status = {**status, "phase": "Running"}
        since = self.state.first_note(pod, "runs since", self.state.time)
        if pod["spec"].get("restartPolicy") == "Never":
            self._run_job(pod, status, since)
        elif BAD in _image(pod) or self._has_failed(pod):
            self._crash(pod, status, since)
        else:
            self._serve(pod, status, since)

    def _reject(self, pod: Manifest) -> None:
        """Each later than the one before, as the kubelet gets to it behind all the others."""
        number = self.state.first_note(pod, "rejected as", self._rejections)
        pause = min(_FIRST_PAUSE_SECONDS * 2**number, _LAST_PAUSE_SECONDS)
        left = self.state.first_note(pod, "rejected at", self.state.time + pause) - self.state.time
        if left > 0:
            self.state.look_after(left)
            return
        self._rejections += 1
        self.state.record(pod, "UnexpectedAdmissionError", _REJECTED)
        self._fail(pod, "UnexpectedAdmissionError", f"Pod was rejected: {_REJECTED}")

    def _waits_for(self, pod: Manifest) -> tuple[str, str] | None:
        """Reason and message of a container that cannot be started yet."""
        claim = attached_elsewhere(self.state, pod)
        if claim is not None:
            words = f'Multi-Attach error for volume "{claim}": it is used by a pod on another node'
            self.state.record(pod, "FailedAttachVolume", words)
            self.state.look_after(_MOUNT_RETRY_SECONDS)
            return "ContainerCreating", ""
        asks = self.strict_secrets and self.state.noted(pod, "runs since") is None
        missing = unmounted(self.state, pod) if asks else None
        if missing is not None:
            self.state.record(pod, "FailedMount", f"MountVolume.SetUp failed for {missing}")
            self.state.look_after(_MOUNT_RETRY_SECONDS)
            return "ContainerCreating", ""
        image = _image(pod)
        if TYPO in image:
            words = f'Back-off pulling image "{image}": not found'
            self.state.record(pod, "Failed", f'Failed to pull image "{image}": not found')
            return "ImagePullBackOff", words
        words = misconfigured(self.state, pod) if asks else None
        return ("CreateContainerConfigError", words) if words is not None else None

    def _has_failed(self, pod: Manifest) -> bool:
        """Whether its engine ends by a sick device."""
        devices_of(self.state, pod)  # are given out before any of them falls sick
        if not ends_engine(self.state, pod):
            return False
        self.state.first_note(pod, "crashes at", self.state.time)
        return True

    def _serve(self, pod: Manifest, status: Manifest, since: float) -> None:
        missing = missing_rank(self.state, pod)
        if missing is not None:
            self._wait_for_a_rank(pod, status, missing)
            return
        since = self.state.first_note(pod, "joined at", self.state.time)
        left = since + self.load_seconds - self.state.time
        ready = left <= 0 and self.answers(pod)
        if left > 0:
            self.state.look_after(left)
        running = {"running": {"startedAt": status["startTime"]}}
        status["containerStatuses"] = _containers(pod, ready=ready, state=running)
        with_health(self.state, pod, status["containerStatuses"])
        self._write(pod, self._with_ready(pod, status, ready=ready))

    def _wait_for_a_rank(self, pod: Manifest, status: Manifest, missing: str) -> None:
        """At its rendezvous, unless it has begun: then it has ended, and is started again."""
        running = {"running": {"startedAt": status["startTime"]}}
        found = _containers(pod, ready=False, state=running)
        if self.state.noted(pod, "joined at") is not None:
            found[0] |= _started_again(1, running, f"the engine of {missing} is gone")
        status["containerStatuses"] = found
        self._write(pod, self._with_ready(pod, status, ready=False))

    def _crash(self, pod: Manifest, status: Manifest, since: float) -> None:
        """Ends after a few seconds, is started again after ever longer pauses."""
        due = self.state.first_note(pod, "crashes at", since + _CRASH_SECONDS)
        restarts = self.state.first_note(pod, "restarts", 0)
        if self.state.time >= due and restarts != self.most_restarts:
            pause = min(_FIRST_PAUSE_SECONDS * 2**restarts, _LAST_PAUSE_SECONDS)
            restarts, due = restarts + 1, self.state.time + pause + _CRASH_SECONDS
            self.state.note(pod, "restarts", restarts)
            self.state.note(pod, "crashes at", due)
        if restarts != self.most_restarts:
            self.state.look_after(due - self.state.time)
        if restarts:
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting container"}
            running = {"running": {"startedAt": status["startTime"]}}
            found = _containers(pod, ready=True, state=running)  # the engine alone ends
            found[0] |= _started_again(restarts, {"waiting": waiting}, "no such model")
        else:
            running = {"running": {"startedAt": status["startTime"]}}
            found = _containers(pod, ready=False, state=running)
        status["containerStatuses"] = found
        with_health(self.state, pod, found)
        self._write(pod, self._with_ready(pod, status, ready=False))

    def _run_job(self, pod: Manifest, status: Manifest, since: float) -> None:
        if self.strict_secrets and self.state.noted(pod, "environment") is None:
            self.state.note(pod, "environment", variables(self.state, pod))
        left = since + self.job_seconds - self.state.time
        if left > 0:
            self.state.look_after(left)
            running = {"running": {"startedAt": status["startTime"]}}
            status["containerStatuses"] = _containers(pod, ready=True, state=running)
            self._write(pod, self._with_ready(pod, status, ready=True))
            return
        code, message = (1, "no such model") if BAD in _image(pod) else self.run(pod)
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        status["containerStatuses"] = _containers(pod, ready=False, state={"terminated": ended})
        status["phase"] = "Failed" if code else "Succeeded"
        self._write(pod, self._with_ready(pod, status, ready=False))

    def _fail(self, pod: Manifest, reason: str, message: str) -> None:
        status = {**(pod.get("status") or {}), "phase": "Failed"}
        status |= {"reason": reason, "message": message}
        if status.get("containerStatuses"):
            ended = {"exitCode": 137, "reason": "Error"}
            status["containerStatuses"] = _containers(pod, ready=False, state={"terminated": ended})
        self._write(pod, self._with_ready(pod, status, ready=False))

    def _with_ready(self, pod: Manifest, status: Manifest, *, ready: bool) -> Manifest:
        known = condition_of(pod, "Ready") or {}
        value = str(ready)
        moved = known.get("status") != value
        stamp = self.state.stamp() if moved else known["lastTransitionTime"]
        found = {"type": "Ready", "status": value, "lastTransitionTime": stamp}
        return with_condition(status, found)

    def _write(self, pod: Manifest, status: Manifest) -> None:
        self.state.set_status(pod, status)


def _not_running(pod: Manifest, status: Manifest, reason: str, message: str) -> Manifest:
    waiting = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    found = _containers(pod, ready=False, state=waiting)
    return {**status, "phase": "Pending", "containerStatuses": found}


def _started_again(times: int, state: Manifest, words: str) -> Manifest:
    ended = {"reason": "Error", "exitCode": 1, "message": words}
    last = {"terminated": ended}
    return {"ready": False, "restartCount": times, "state": state, "lastState": last}


def _containers(pod: Manifest, *, ready: bool, state: Manifest) -> list[Manifest]:
    return [
        {"name": item["name"], "ready": ready, "restartCount": 0, "state": state}
        for item in pod["spec"]["containers"]
    ]


def _image(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0].get("image"))
