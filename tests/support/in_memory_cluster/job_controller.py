"""Jobs: one pod at a time until one succeeds, its retries are spent or its deadline has passed.

A pod that the API server refuses leaves no condition in a Job, only an Event: that is how the real
controller is, and what whoever waits for a Job has to know.
"""

from __future__ import annotations

from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import JOB, POD, Manifest
from tests.support.in_memory_cluster.admission import create_pod
from tests.support.in_memory_cluster.state import ClusterState, active, condition_of, is_terminal

_RETRIES = 6
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 10.0, 360.0


def sync_jobs(state: ClusterState) -> None:
    for job in state.all(JOB):
        if _ended(job) is None:
            _sync(state, job)
        else:
            _expire(state, job)


def _sync(state: ClusterState, job: Manifest) -> None:
    spec, status = job["spec"], job.get("status") or {}
    started = status.get("startTime") or state.stamp()
    pods = state.owned(POD, job)
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    done = any(pod["status"].get("phase") == "Succeeded" for pod in pods)
    running = active(pods)
    found: dict[str, Any] = {"startTime": started}
    counts = {"active": len(running), "failed": len(failed), "succeeded": int(done)}
    found |= {name: count for name, count in counts.items() if count}
    deadline = spec.get("activeDeadlineSeconds")
    if done:
        return _end(state, job, found, "Complete", "CompletionsReached", "Reached expected number")
    if len(failed) > spec.get("backoffLimit", _RETRIES):
        words = "Job has reached the specified backoff limit"
        return _end(state, job, found, "Failed", "BackoffLimitExceeded", words)
    if deadline is not None:
        left = deadline - state.seconds_since(started)
        if left <= 0:
            for pod in running:
                state.delete_pod(pod)
            found.pop("active", None)
            words = "Job was active longer than specified deadline"
            return _end(state, job, found, "Failed", "DeadlineExceeded", words)
        state.look_after(left)
    if not running and all(is_terminal(pod) for pod in pods):
        _create(state, job, failed)
        running = active(state.owned(POD, job))
        found |= {"active": len(running)} if running else {}
    return state.set_status(job, found)


def _create(state: ClusterState, job: Manifest, failed: list[Manifest]) -> None:
    if failed:
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** (len(failed) - 1), _LAST_PAUSE_SECONDS)
        ended = max(state.first_note(pod, "ended at", state.time) for pod in failed)
        left = ended + pause - state.time
        if left > 0:
            state.look_after(left)
            return
    if not state.may_try(job):
        return
    template, name = job["spec"]["template"], job["metadata"]["name"]
    labels = {
        **(template["metadata"].get("labels") or {}),
        "job-name": name,
        "batch.kubernetes.io/job-name": name,
    }
    metadata = {**template["metadata"], "labels": labels, "name": state.unused_name(name)}
    metadata["namespace"] = job["metadata"]["namespace"]
    try:
        create_pod(state, {"metadata": metadata, "spec": template["spec"]}, job)
    except RefusedError as error:
        state.record(job, "FailedCreate", f"Error creating: {error}")
        state.try_again(job, _FIRST_PAUSE_SECONDS)


def _end(
    state: ClusterState, job: Manifest, status: Manifest, kind: str, reason: str, words: str
) -> None:
    condition = {"type": kind, "status": "True", "reason": reason, "message": words}
    condition["lastTransitionTime"] = state.stamp()
    if kind == "Complete":
        status["completionTime"] = state.stamp()
    state.set_status(job, {**status, "conditions": [condition]})
    if kind == "Failed":
        state.record(job, reason, words)


def _ended(job: Manifest) -> Manifest | None:
    return condition_of(job, "Complete") or condition_of(job, "Failed")


def _expire(state: ClusterState, job: Manifest) -> None:
    seconds = job["spec"].get("ttlSecondsAfterFinished")
    ended = _ended(job)
    if seconds is None or ended is None:
        return
    left = seconds - state.seconds_since(ended["lastTransitionTime"])
    if left <= 0:
        state.remove(JOB, job)
    else:
        state.look_after(left)
