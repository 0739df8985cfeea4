"""PersistentVolumeClaims: which exist, who may mount them at a time, and in which zone they are."""

from __future__ import annotations

from atom_operator.domain import POD, VOLUME, VOLUME_CLAIM, Manifest
from tests.support.in_memory_cluster.node_fit import matches_term
from tests.support.in_memory_cluster.state import ClusterState, is_terminal

_SHARED = {"ReadWriteMany", "ReadOnlyMany"}


def claim_names(pod: Manifest) -> list[str]:
    """The claims that a pod mounts."""
    volumes = pod["spec"].get("volumes") or ()
    return [
        item["persistentVolumeClaim"]["claimName"]
        for item in volumes
        if item.get("persistentVolumeClaim")
    ]


def unbound(state: ClusterState, pod: Manifest) -> str | None:
    """Why no node at all is looked at: a claim is missing, or not bound."""
    for name in claim_names(pod):
        claim = state.api.objects.get((VOLUME_CLAIM, pod["metadata"]["namespace"], name))
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if (claim.get("status") or {}).get("phase", "Bound") != "Bound":
            return "pod has unbound immediate PersistentVolumeClaims"
    return None


def conflict(state: ClusterState, node: Manifest, pod: Manifest) -> str | None:
    """Why a node cannot have the pod's claims."""
    for name in claim_names(pod):
        claim = state.api.objects[VOLUME_CLAIM, pod["metadata"]["namespace"], name]
        if _modes(claim) == {"ReadWriteOncePod"} and _users(state, pod, name):
            return (
                "node has pod using PersistentVolumeClaim with the same name and "
                "ReadWriteOncePod access mode"
            )
        volume = state.api.objects.get(
            (VOLUME, "", str((claim.get("spec") or {}).get("volumeName")))
        )
        required = ((volume or {}).get("spec") or {}).get("nodeAffinity", {}).get("required")
        terms = (required or {}).get("nodeSelectorTerms") or ()
        if terms and not any(matches_term(node, term) for term in terms):
            return "node(s) had volume node affinity conflict"
    return None


def attached_elsewhere(state: ClusterState, pod: Manifest) -> str | None:
    """The claim of a placed pod that another node has and does not share; the kubelet waits."""
    for name in claim_names(pod):
        claim = state.api.objects.get((VOLUME_CLAIM, pod["metadata"]["namespace"], name))
        if claim is None or _modes(claim) & _SHARED or not _modes(claim):
            continue
        places = {user["spec"]["nodeName"] for user in _users(state, pod, name)}
        if places - {pod["spec"]["nodeName"]}:
            return name
    return None


def _modes(claim: Manifest) -> set[str]:
    bound = (claim.get("status") or {}).get("accessModes")
    return set(bound or (claim.get("spec") or {}).get("accessModes") or ())


def _users(state: ClusterState, pod: Manifest, name: str) -> list[Manifest]:
    """Other pods on nodes that mount it, those that came before."""
    return [
        other
        for other in state.all(POD)
        if other is not pod
        and other["spec"].get("nodeName")
        and not is_terminal(other)
        and name in claim_names(other)
        and other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and int(other["metadata"]["uid"][4:]) < int(pod["metadata"]["uid"][4:])
    ]
