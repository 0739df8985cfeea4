"""Jobs that prepare a model: read how they stand, create what is missing, clear what is spent.

A failed Job is made again after a while, or at once when what is asked for has changed: nothing
announces that a Secret, a claim or the hub has been put right. Idempotent, as all of cluster/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from atom_operator import constants
from atom_operator.cluster.observe import belongs_to
from atom_operator.cluster.pod_state import last_words
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import JOB, POD, Manifest, Owner
from atom_operator.domain.preparation import JobPurpose, JobRequest, JobState

RETRY_AFTER = timedelta(minutes=10)


async def read_job(port: ClusterPort, namespace: str, request: JobRequest) -> JobState | None:
    """Read the Job, whichever AtomDeployment asked for it first; None when there is none."""
    job = await port.get(JOB, namespace, request.name)
    if job is None:
        return None
    ended = _ended(job)
    if ended and ended["type"] == "Complete" and request.purpose is JobPurpose.WEIGHTS:
        return job_state(job, ())  # its pods have nothing more to say
    pods = await port.list_labelled(POD, namespace, {"job-name": request.name})
    return job_state(job, pods)


async def ensure_jobs(
    port: ClusterPort,
    owner: Owner,
    requests: Iterable[JobRequest],
    now: datetime,
    *,
    prune: bool,
) -> None:
    """Create the Jobs that are missing, remove failed ones that are due; `prune` removes those
    of ours that are not asked for."""
    wanted, key = {request.name: request for request in requests}, owner.key
    for request in wanted.values():
        job = await port.get(JOB, key.namespace, request.name)
        if job is None:
            await port.apply(JOB, request.manifest)
        elif _is_spent(job, request, now):
            await port.delete(JOB, key.namespace, request.name)
    if not prune:
        return
    for job in await port.list_labelled(JOB, key.namespace, {constants.LABEL_JOB_FOR: key.name}):
        name = job["metadata"]["name"]
        if name not in wanted and belongs_to(job, owner.uid):
            await port.delete(JOB, key.namespace, name)


def job_state(job: Manifest, pods: Iterable[Manifest]) -> JobState:
    """The typed view of a Job and its pods."""
    latest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
    ended = _ended(job)
    if ended is None:
        message = last_words(latest) if latest else ""
        address = ((latest or {}).get("status") or {}).get("podIP")
        return JobState("Running", message, address=address or None)
    failed = ended["type"] == "Failed"
    words = (last_words(latest) if latest else "") or str(ended.get("message") or "")
    return JobState(
        phase="Failed" if failed else "Succeeded",
        message=words if failed else "",
        result=None if failed or latest is None else _result(latest),
        finished_at=_time(ended.get("lastTransitionTime")),
    )


def _ended(job: Manifest) -> Mapping[str, Any] | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return dict(condition)
    return None


def _result(pod: Manifest) -> str | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode") == 0:
            return ended.get("message") or None
    return None


def _is_spent(job: Manifest, request: JobRequest, now: datetime) -> bool:
    ended = _ended(job)
    if ended is None or ended["type"] != "Failed":
        return False
    annotations = job["metadata"].get("annotations") or {}
    if annotations.get(constants.ANNOTATION_JOB_DIGEST) != request.digest:
        return True
    since = _time(ended.get("lastTransitionTime"))
    return since is None or now - since >= RETRY_AFTER


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
