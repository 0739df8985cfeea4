"""Secrets as kubelets hand them to pods: a variable has the value that was there when its container
started, a mounted file the one that is there now.

Called by the kubelets, and by tests whose Jobs' pods do something with what they were given.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.domain import Manifest
from tests.support.in_memory_cluster.kinds import SECRET
from tests.support.in_memory_cluster.state import ClusterState


def unmounted(state: ClusterState, pod: Manifest) -> str | None:
    """Why a volume cannot be set up, in the kubelet's words."""
    for volume in pod["spec"].get("volumes") or ():
        name = (volume.get("secret") or {}).get("secretName")
        if name and _data(state, pod, name) is None:
            return f'volume "{volume["name"]}" : secret "{name}" not found'
    return None


def misconfigured(state: ClusterState, pod: Manifest) -> str | None:
    """Why a container cannot be made, in the kubelet's words."""
    for name, key in _references(pod):
        data = _data(state, pod, name)
        if data is None:
            return f'secret "{name}" not found'
        if key is not None and key not in data:
            return f"couldn't find key {key} in Secret {pod['metadata']['namespace']}/{name}"
    return None


def variables(state: ClusterState, pod: Manifest) -> dict[str, str]:
    """What a container that starts now has of Secrets; what it names itself comes first."""
    container = pod["spec"]["containers"][0]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        found |= _data(state, pod, (source.get("secretRef") or {}).get("name")) or {}
    for variable in container.get("env") or ():
        source = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if source:
            found[variable["name"]] = (_data(state, pod, source["name"]) or {})[source["key"]]
    return found


def file_of(state: ClusterState, pod: Manifest, path: str) -> str | None:
    """What is in a file of a mounted Secret; None where there is no such file."""
    folder, _, key = path.rpartition("/")
    mounts = pod["spec"]["containers"][0].get("volumeMounts") or ()
    names = [mount["name"] for mount in mounts if mount["mountPath"] == folder]
    for volume in pod["spec"].get("volumes") or ():
        if volume["name"] in names and "secret" in volume:
            return (_data(state, pod, volume["secret"]["secretName"]) or {}).get(key)
    return None


def _references(pod: Manifest) -> Iterator[tuple[str, str | None]]:
    """The Secrets of variables, with the key where one is named."""
    for container in pod["spec"]["containers"]:
        for source in container.get("envFrom") or ():
            if "secretRef" in source:
                yield source["secretRef"]["name"], None
        for variable in container.get("env") or ():
            source = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if source:
                yield source["name"], source["key"]


def _data(state: ClusterState, pod: Manifest, name: str | None) -> dict[str, str] | None:
    """What a Secret holds; None where there is none."""
    found = state.api.objects.get((SECRET, pod["metadata"]["namespace"], name or ""))
    return None if found is None else dict(found.get("data") or {})
