"""Release a Deployment whose controller takes it for a scaling that does not end.

The controller compares `spec.replicas` with the number that each ReplicaSet with replicas has in an
annotation, and only scales as long as one differs. It renews the annotation when it changes the
size. If the one ReplicaSet has the size already, or if a Recreate finds several of them, it changes
none, so it never begins the next rollout, and reports no deadline either
(https://github.com/kubernetes/kubernetes/issues/102551). The remedy is the annotation that the
controller would write. It changes no pod, and a number that changes meanwhile is one more scaling.
Level-based: each pass looks again. Called by the reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.observe import belongs_to
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import DEPLOYMENT, ChildKey, Manifest, ObjectKey, Observed
from atom_operator.kinds import REPLICA_SET

_logger = logging.getLogger(__name__)
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MOST = "deployment.kubernetes.io/max-replicas"
# A controller that is well has made the new ReplicaSet by then.
_PATIENCE = timedelta(seconds=30)


async def release_stuck_scaling(port: ClusterPort, key: ObjectKey, observed: Observed) -> None:
    """Renew the annotations of the Deployment's ReplicaSets if its controller is stuck. A failed
    request is tried again in the next pass."""
    deployment = observed.children.get(ChildKey(DEPLOYMENT, key.name))
    if deployment is None or not may_be_stuck(deployment, observed):
        return
    try:
        for name in await renew_annotations(port, key, deployment):
            _logger.info("%s/%s: ReplicaSet %s: scaling ended", *key, name)
    except ClusterError as error:  # such as a chart from before, which has no right to it
        _logger.info("%s/%s: ReplicaSets: %s", *key, error)


async def renew_annotations(port: ClusterPort, key: ObjectKey, deployment: Manifest) -> list[str]:
    """Renew the annotations that stop the rollout of a Deployment which its controller has seen;
    return the names of their ReplicaSets. Raises ClusterError."""
    found = await port.list_labelled(REPLICA_SET, key.namespace, {LABEL_DEPLOYMENT: key.name})
    own = [item for item in found if belongs_to(item, deployment["metadata"]["uid"])]
    stuck = stuck_sets(deployment, own)
    for item in stuck:
        await port.apply(REPLICA_SET, _renewed(deployment, item))
    return [item["metadata"]["name"] for item in stuck]


def may_be_stuck(deployment: Manifest, observed: Observed) -> bool:
    """Return whether the controller has had the time to begin a rollout, and has made no pod of
    the new revision. Says so of rollouts that wait for a quota, too."""
    running = observed.workload_of(DEPLOYMENT)
    if running is None or not running.desired or running.complete or running.progress.paused:
        return False
    if not running.progress.up_to_date or (running.updated and not _recreates(deployment)):
        return False
    asked_at = running.notes.rollout.asked_at if running.notes.rollout is not None else None
    return asked_at is None or observed.at is None or observed.at - asked_at >= _PATIENCE


def stuck_sets(deployment: Manifest, sets: Sequence[Manifest]) -> list[Manifest]:
    """Return the ReplicaSets whose annotation stops the rollout of a Deployment that its controller
    has seen; none if the controller goes on to scale them."""
    replicas = deployment["spec"].get("replicas", 1)
    active = [item for item in sets if item["spec"].get("replicas", 1)]
    stale = [item for item in active if _noted(item) not in (None, str(replicas))]
    if len(active) == 1:
        return [item for item in stale if item["spec"].get("replicas", 1) == replicas]
    return stale if _recreates(deployment) else []


def _noted(item: Manifest) -> str | None:
    number: str | None = (item["metadata"].get("annotations") or {}).get(_DESIRED)
    return number


def _recreates(deployment: Manifest) -> bool:
    return (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"


def _renewed(deployment: Manifest, item: Manifest) -> Manifest:
    replicas = deployment["spec"].get("replicas", 1)
    steps = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    annotations = {_DESIRED: str(replicas)}
    spare = 0 if _recreates(deployment) else steps.get("maxSurge")
    if isinstance(spare, int):
        annotations[_MOST] = str(replicas + spare)
    metadata = {name: item["metadata"][name] for name in ("name", "namespace")}
    return {
        "apiVersion": REPLICA_SET.api_version,
        "kind": REPLICA_SET.kind,
        "metadata": {**metadata, "annotations": annotations},
    }
