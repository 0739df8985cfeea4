"""The objects of the cluster that belong to one AtomDeployment, as far as the user may read them.

Reads through the user's kubectl; judges nothing. Called by the commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from atom_operator import constants
from atom_operator.domain import DEPLOYMENT
from atom_operator.domain.devices import DevicePicture, device_picture
from atom_operator.kinds import (
    DEVICE_CLASS,
    LEADER_WORKER_SET,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Kind,
)
from atom_operator.plan.volume_claims.pvc_access import mounted_claims
from atom_operator.plugin.kubectl import Kubectl, KubectlError
from atom_operator.plugin.why import Seen
from atom_operator.pods.pod_state import has_ended

MOST_PODS = 50
RESOURCE = f"{constants.PLURAL}.{constants.GROUP}"
_DRA = RESOURCE_CLAIM.group
# One of another AtomDeployment's may fetch our weights.
_NAMED_JOB = re.compile(r"\bJob ([a-z0-9.-]+)")


def selector(name: str, label: str = constants.LABEL_DEPLOYMENT) -> str:
    """Return kubectl's flag that selects an AtomDeployment's objects."""
    return f"--selector={label}={name}"


def served(kubectl: Kubectl, kinds: Iterable[Kind]) -> list[str]:
    """List the kinds that the cluster serves: kubectl refuses a list that names another."""
    known = set(kubectl.text("api-resources", "--namespaced", "--output=name").split())
    names = (f"{kind.plural}.{kind.group}".rstrip(".") for kind in kinds)
    return [name for name in names if name in known]


def is_about(event: dict[str, Any], name: str) -> bool:
    """Return whether an event is about the AtomDeployment, or an object named after it."""
    about = event.get("involvedObject") or {}
    if about.get("kind") == constants.KIND:
        return bool(about.get("name") == name)
    return str(about.get("name", "")).startswith(f"{name}-")


def serving_pods(pods: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the pods that have an address to call and have not ended."""
    serving = [pod for pod in pods if _role(pod) != constants.ROLE_WORKER and not has_ended(pod)]
    return sorted(str(pod["metadata"]["name"]) for pod in serving)[:MOST_PODS]


def _role(pod: dict[str, Any]) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(constants.LABEL_ROLE)


def what_is_there(kubectl: Kubectl, name: str) -> Seen:
    """Read all objects between an AtomDeployment and its containers."""
    parent = kubectl.json("get", RESOURCE, name)
    kinds = ",".join(
        [*served(kubectl, (DEPLOYMENT, LEADER_WORKER_SET)), "replicasets.apps", "pods"]
    )
    objects = kubectl.items("get", kinds, selector(name))
    objects += _jobs(kubectl, parent, name)
    objects += _stateful_sets(kubectl, name)
    objects += _claims(kubectl, objects)
    return Seen(
        parent,
        objects,
        kubectl.items("get", "events"),
        _readable(kubectl, "resourcequotas"),
        datetime.now(UTC),
    )


def _jobs(kubectl: Kubectl, parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the jobs that prepare the model, whichever AtomDeployment made them, with their
    pods."""
    conditions = (parent.get("status") or {}).get("conditions") or ()
    named = {job for item in conditions for job in _NAMED_JOB.findall(str(item["message"]))}
    ours = kubectl.items("get", "jobs", selector(name, constants.LABEL_JOB_FOR))
    jobs = {job["metadata"]["name"]: job for job in ours}
    for other in sorted(named - set(jobs)):
        found = _readable(kubectl, "jobs", f"--field-selector=metadata.name={other}")
        jobs |= {job["metadata"]["name"]: job for job in found}
    pods = [
        pod for job in jobs for pod in kubectl.items("get", "pods", f"--selector=job-name={job}")
    ]
    return [*jobs.values(), *pods]


def _stateful_sets(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    """List the StatefulSets that the pods of groups belong to: of the LeaderWorkerSet's name, and
    its leaders'."""
    own = re.compile(rf"{re.escape(name)}(-[0-9]+)?")
    found = _readable(kubectl, "statefulsets.apps")
    return [item for item in found if own.fullmatch(item["metadata"]["name"])]


def _claims(kubectl: Kubectl, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the claims that the pods mount."""
    pods = [item for item in objects if item.get("kind") == "Pod"]
    names = {name for pod in pods for name in mounted_claims(pod["spec"])}
    found = _readable(kubectl, "persistentvolumeclaims") if names else []
    return [item for item in found if item["metadata"]["name"] in names]


def claimed_devices(kubectl: Kubectl) -> DevicePicture:
    """Read the devices that pods claim; empty if the cluster does not serve them. Raises
    KubectlError if the user may not read their allocation: no device is known to be free then."""
    if RESOURCE_CLAIM.plural not in kubectl.text("api-resources", f"--api-group={_DRA}"):
        return DevicePicture()
    try:
        return device_picture(
            kubectl.items("get", f"{RESOURCE_SLICE.plural}.{RESOURCE_SLICE.group}"),
            kubectl.items(
                "get", f"{RESOURCE_CLAIM.plural}.{RESOURCE_CLAIM.group}", "--all-namespaces"
            ),
            kubectl.items("get", f"{DEVICE_CLASS.plural}.{DEVICE_CLASS.group}"),
        )
    except KubectlError as error:
        raise KubectlError(f"devices that pods claim cannot be counted: {error}") from error


def _readable(kubectl: Kubectl, *arguments: str) -> list[dict[str, Any]]:
    """Return the objects that help and that the user need not have a right to."""
    try:
        return kubectl.items("get", *arguments)
    except KubectlError:
        return []
