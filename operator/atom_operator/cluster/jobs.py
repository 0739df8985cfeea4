"""Jobs that prepare a model: read their state, create missing ones, replace spent ones.

A Job's own status tells little: pods that a quota or an admission refuses show only in its Events,
and a sidecar that keeps running keeps it from ending. A Job is made again when its inputs have
changed, whatever its state, and a failed one after a while too: no event announces that a Secret, a
claim or the hub has been repaired. Downloaded files stay. Idempotent, as all of cluster/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from atom_operator import constants
from atom_operator.cluster.errors import ClusterError, RefusedError
from atom_operator.cluster.observe import belongs_to
from atom_operator.cluster.pod_waits.volumes import with_volume_words
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import Reason
from atom_operator.domain import (
    JOB,
    POD,
    SERVICE_ACCOUNT,
    ChildKey,
    Manifest,
    Owner,
    Refusal,
)
from atom_operator.domain.preparation import JobPurpose, JobRequest, JobState
from atom_operator.pods.events import newest_refusal
from atom_operator.pods.pod_state import (
    annotation,
    container_problem,
    created_at,
    has_ended,
    last_words,
    pod_state,
    time_of,
)

RETRY_AFTER = timedelta(minutes=10)
# An AtomDeployment that asks for the same differently, as with another token, has a turn before the
# old way is retried.
_OTHERS_TURN_AFTER = RETRY_AFTER / 2


async def read_job(port: ClusterPort, namespace: str, request: JobRequest) -> JobState | None:
    """Read the Job, whichever AtomDeployment requested it first; None if there is none."""
    job = await port.get(JOB, namespace, request.name)
    if job is None or job["metadata"].get("deletionTimestamp"):
        return None
    ended = _ended(job)
    if ended and ended["type"] == "Complete" and request.purpose is JobPurpose.WEIGHTS:
        return job_state(job, ())  # its pods have no further report
    return await _look_at(port, job)


@dataclass(frozen=True, slots=True)
class JobsReport:
    """Hold the Jobs that the API server refused, and by name the succeeded ones whose pods still
    exist."""

    refused: tuple[Refusal, ...] = ()
    failed: tuple[Refusal, ...] = ()  # for the moment
    succeeded: tuple[tuple[str, JobState], ...] = ()


async def ensure_account(port: ClusterPort, account: Manifest) -> tuple[Refusal, ...]:
    """Create the account of Jobs if there is none of that name; later changes are applied with the
    other children."""
    metadata = account["metadata"]
    try:
        if await port.get(SERVICE_ACCOUNT, metadata["namespace"], metadata["name"]) is None:
            await port.apply(SERVICE_ACCOUNT, account)
    except RefusedError as error:
        child = ChildKey(SERVICE_ACCOUNT, metadata["name"])
        return (Refusal(child, Reason.APPLY_REFUSED, str(error)),)
    return ()


async def ensure_jobs(
    port: ClusterPort,
    owner: Owner,
    requests: Iterable[JobRequest],
    now: datetime,
    *,
    prune: bool,
) -> JobsReport:
    """Create missing Jobs and replace spent ones; `prune` removes those of ours that are not
    requested."""
    wanted, key = {request.name: request for request in requests}, owner.key
    refused: list[Refusal] = []
    failed: list[Refusal] = []
    succeeded: list[tuple[str, JobState]] = []
    for request in wanted.values():
        try:
            job = await port.get(JOB, key.namespace, request.name)
            if job is None:
                await port.apply(JOB, request.manifest)
            else:
                state = await _keep_up(port, owner, job, request, now)
                if state is not None and state.result is not None:
                    succeeded.append((request.name, state))
        except RefusedError as error:
            child = ChildKey(JOB, request.name)
            refused.append(Refusal(child, Reason.APPLY_REFUSED, str(error)))
        except ClusterError as error:
            child = ChildKey(JOB, request.name)
            failed.append(Refusal(child, Reason.APPLY_FAILED, str(error)))
    report = JobsReport(tuple(refused), tuple(failed), tuple(succeeded))
    if not prune:
        return report
    for job in await port.list_labelled(JOB, key.namespace, {constants.LABEL_JOB_FOR: key.name}):
        name = job["metadata"]["name"]
        if name not in wanted and belongs_to(job, owner.uid):
            await port.delete(JOB, key.namespace, name)
    return report


async def _keep_up(
    port: ClusterPort, owner: Owner, job: Manifest, request: JobRequest, now: datetime
) -> JobState | None:
    """Replace a spent Job; end one that outlasts its work. Returns its state, if it was read."""
    if _is_done(job) or job["metadata"].get("deletionTimestamp"):
        return None
    state = await _look_at(port, job)
    if state.lingers:
        await port.replace(JOB, _as_done(job, state))
    elif _is_spent(job, state, request, owner, now):
        await port.delete(JOB, owner.key.namespace, request.name)
        # At once, or another AtomDeployment that waits for the same may make it as it was.
        if await port.get(JOB, owner.key.namespace, request.name) is None:
            await port.apply(JOB, request.manifest)
    return state


async def _look_at(port: ClusterPort, job: Manifest) -> JobState:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    found = await port.list_labelled(POD, namespace, {"job-name": name})
    # A pod of the Job that had this name before may still be about to end.
    uid = job["metadata"].get("uid")
    pods = [
        pod
        for pod in found
        if belongs_to(pod, str(uid)) or not pod["metadata"].get("ownerReferences")
    ]
    refused = None
    if not _is_done(job) and _ended(job) is None and all(has_ended(pod) for pod in pods):
        events = await port.list_events(namespace, JOB.kind, name)
        made = [time for pod in pods if (time := created_at(pod)) is not None]
        found_last = newest_refusal(events, after=max(made, default=None))
        refused = found_last.words if found_last is not None else None
    state, latest = job_state(job, pods, refused), _latest(pods)
    return await _with_volumes(port, state, latest) if latest is not None else state


async def _with_volumes(port: ClusterPort, state: JobState, pod: Manifest) -> JobState:
    """Add the Events of a pod that waits for its volumes."""
    if state.phase != "Running" or state.refused or has_ended(pod):
        return state
    before = pod_state(pod)
    after = await with_volume_words(port, pod, before, None)
    if after == before:
        return state
    named = f"pod {after.name}: {after.health.problem or after.placement.unschedulable_message}"
    if after.health.problem is not None:
        return replace(state, message=named, problem=named)
    return replace(state, message=named, unschedulable=named)


def job_state(job: Manifest, pods: Iterable[Manifest], refused: str | None = None) -> JobState:
    """Return the typed view of a Job and its pods; `refused`: why it gets no pod."""
    latest = _latest(pods)
    if _is_done(job):
        return JobState(
            "Succeeded", result=annotation(job, constants.ANNOTATION_JOB_RESULT) or None
        )
    ended = _ended(job)
    if ended is None:
        return _running(latest, refused)
    failed = ended["type"] == "Failed"
    words = (_words(latest) if latest else "") or str(ended.get("message") or "")
    return JobState(
        phase="Failed" if failed else "Succeeded",
        message=words if failed else "",
        result=None if failed or latest is None else _result(latest),
        finished_at=time_of(ended.get("lastTransitionTime")),
    )


def _latest(pods: Iterable[Manifest]) -> Manifest | None:
    return max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)


def _running(pod: Manifest | None, refused: str | None) -> JobState:
    """Return the state of a running Job, by its newest pod."""
    if refused is not None:
        words = f"its pods are refused: {refused}"
        return JobState("Running", words, problem=words, refused=True)
    if pod is None:
        return JobState("Running", "it has no pod yet")
    address = (pod.get("status") or {}).get("podIP")
    if has_ended(pod):
        return JobState("Running", f"pod {pod['metadata']['name']} ended: {_words(pod)}")
    ended = _end_of_work(pod)
    if ended is not None and _others_go_on(pod):
        at = time_of(ended.get("finishedAt"))
        if ended.get("exitCode") == 0:
            return JobState("Succeeded", result=_result(pod), finished_at=at, lingers=True)
        return JobState("Failed", _words(pod), finished_at=at)
    state, words = pod_state(pod), _words(pod)
    named = f"pod {pod['metadata']['name']}: {words}" if words else ""
    works = ended is not None or _runs(_work(pod) or {})
    return JobState(
        "Running",
        named,
        address=address or None,
        problem=named
        if words and state.placement.unschedulable_message is None and not works
        else None,
        unschedulable=named if state.placement.unschedulable_message is not None else None,
    )


def _is_done(job: Manifest) -> bool:
    """Return whether our annotation marks the Job as done; its controller never reports the end of
    a Job whose pod lingers."""
    return annotation(job, constants.ANNOTATION_JOB_RESULT) is not None


def _as_done(job: Manifest, state: JobState) -> Manifest:
    """Suspend the Job, which ends the rest of its pod, and record its result."""
    metadata = job["metadata"]
    annotations = {
        **(metadata.get("annotations") or {}),
        constants.ANNOTATION_JOB_RESULT: state.result or "",
    }
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {
        **job,
        "metadata": {**kept, "annotations": annotations},
        "spec": {**job["spec"], "suspend": True},
    }


def _ended(job: Manifest) -> Mapping[str, Any] | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return dict(condition)
    return None


def _work(pod: Manifest) -> Mapping[str, Any] | None:
    """Return the status of the working container; injected containers are not ours."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((item for item in statuses if item["name"] == constants.JOB_CONTAINER), None)


def _words(pod: Manifest) -> str:
    """Return the working container's problem, or else the last words of any other container."""
    work = _work(pod)
    own = container_problem(work) if work is not None else None
    return own or last_words(pod)


def _end_of_work(pod: Manifest) -> Mapping[str, Any] | None:
    return ((_work(pod) or {}).get("state") or {}).get("terminated")


def _others_go_on(pod: Manifest) -> bool:
    """Return whether a container beside the working one runs, which keeps the pod from ending."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(_runs(item) for item in statuses if item["name"] != constants.JOB_CONTAINER)


def _runs(container: Mapping[str, Any]) -> bool:
    return (container.get("state") or {}).get("running") is not None


def _result(pod: Manifest) -> str | None:
    ended = _end_of_work(pod)
    return ended.get("message") or None if ended and ended.get("exitCode") == 0 else None


def _is_spent(
    job: Manifest, state: JobState, request: JobRequest, owner: Owner, now: datetime
) -> bool:
    """Return whether another Job is due. One that another AtomDeployment made, which may ask for
    the same otherwise, is left to it for a while: two that differ would replace each other for
    ever."""
    if state.phase == "Succeeded":
        return False
    failed = state.phase == "Failed"
    made_for = (job["metadata"].get("labels") or {}).get(constants.LABEL_JOB_FOR)
    digest = annotation(job, constants.ANNOTATION_JOB_DIGEST)
    hangs = state.problem is not None or state.unschedulable is not None
    if made_for == owner.key.name and digest != request.digest:
        return failed or hangs or digest is not None  # None: an older operator's, and it works
    if not failed and (made_for == owner.key.name or not hangs):
        return False
    since = state.finished_at if failed else created_at(job)
    differs = made_for != owner.key.name and digest != request.digest
    wait = _OTHERS_TURN_AFTER if failed and differs else RETRY_AFTER
    return since is None or now - since >= wait
