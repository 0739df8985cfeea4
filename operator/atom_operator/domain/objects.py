"""Kubernetes objects as the API server names them: keys, manifests, and the kinds that we touch.

Manifests stay plain mappings, because they must reach the API server exactly as rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atom_operator import constants
from atom_operator.kinds import ATOM_DEPLOYMENT as ATOM_DEPLOYMENT
from atom_operator.kinds import LEADER_WORKER_SET, Kind

Manifest = dict[str, Any]


class ObjectKey(NamedTuple):
    """Namespace and name of an AtomDeployment."""

    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> ObjectKey:
        """Return the key of an AtomDeployment by its metadata."""
        return cls(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


class Owner(NamedTuple):
    """Identify one AtomDeployment, distinct from a former one of the same name."""

    key: ObjectKey
    uid: str


DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
SERVICE = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
ATOM_PROFILE = Kind(
    constants.GROUP, constants.VERSION, constants.PROFILE_KIND, constants.PROFILE_PLURAL
)
NAMESPACE = Kind("", "v1", "Namespace", "namespaces")
POD = Kind("", "v1", "Pod", "pods")
NODE = Kind("", "v1", "Node", "nodes")
EVENT = Kind("", "v1", "Event", "events")
WORKLOAD_KINDS = (DEPLOYMENT, LEADER_WORKER_SET)
JOB = Kind("batch", "v1", "Job", "jobs")
VOLUME = Kind("", "v1", "PersistentVolume", "persistentvolumes")
VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
# In the order of creation: a pod's prerequisites precede the Deployment, and so does the record of
# earlier pods.
CHILD_KINDS = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    SERVICE,
    DISRUPTION_BUDGET,
    CONTROLLER_REVISION,
    DEPLOYMENT,
)


class ChildKey(NamedTuple):
    """Identify one child object; its namespace is its owner's."""

    kind: Kind
    name: str


def is_of_newest_spec(item: Mapping[str, Any], manifest: Manifest) -> bool:
    """Return whether a condition of an object is of its newest spec; one without a generation
    counts as such."""
    seen, generation = item.get("observedGeneration"), manifest["metadata"].get("generation")
    return seen is None or generation is None or seen >= generation


def runs_engines(child: ChildKey, manifest: Manifest) -> bool:
    """Return whether a child is a workload of engine pods; others are the endpoint picker's and the
    frontend's."""
    labels = manifest["metadata"].get("labels") or {}
    others = (constants.PICKER_COMPONENT, constants.FRONTEND_COMPONENT)
    return child.kind in WORKLOAD_KINDS and labels.get(constants.LABEL_COMPONENT) not in others
