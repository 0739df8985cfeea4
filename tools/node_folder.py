"""A folder of the embedded cluster's node as a claim, as the admin of a cluster would offer it.

Pods that mount a claim are allowed under every site's rules, which those with a hostPath of their
own are not. Used by the demo and by the end-to-end tests, for the model's file and for the
libraries of the thin image.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.kube import Kube, KubeError, wait_until

_SIZE = {"storage": "1Gi"}  # of a folder nobody measures it, but a volume must name one
_MODES = ["ReadOnlyMany"]
_PREFIX = "node-folder-"


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """A folder, and the claim by which pods mount it."""

    claim: str
    path: Path


def offer(kube: Kube, folder: NodeFolder) -> None:
    """Make the volume and the claim in `kube`'s namespace, unless they are there, and wait until
    they are bound. Raises `KubeError` where the claim is of another folder."""
    name = _volume_name(kube, folder)
    for there, volume in _volumes(kube).items():
        path = volume["spec"].get("hostPath", {}).get("path")
        if there.startswith(_PREFIX) and volume["status"].get("phase") in ("Released", "Failed"):
            kube.kubectl("delete", "pv", there)  # its claim went with its namespace
        elif there == name and path != str(folder.path):
            raise KubeError(
                f"volume {name} is {path}, and {folder.path} is wanted; `make demo-down` removes it"
            )
    kube.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects(kube, folder)}))
    wait_until(
        f"claim {folder.claim} bound",
        lambda: kube.get("pvc", folder.claim).get("status", {}).get("phase") == "Bound",
    )


def _volume_name(kube: Kube, folder: NodeFolder) -> str:
    return f"{_PREFIX}{kube.namespace}-{folder.claim}"


def _volumes(kube: Kube) -> dict[str, Any]:
    found = json.loads(kube.kubectl("get", "pv", "--output=json"))
    return {item["metadata"]["name"]: item for item in found["items"]}


def _objects(kube: Kube, folder: NodeFolder) -> list[dict[str, Any]]:
    name = _volume_name(kube, folder)
    volume = {
        "capacity": _SIZE,
        "accessModes": _MODES,
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": str(folder.path), "type": "Directory"},
        "claimRef": {"namespace": kube.namespace, "name": folder.claim},
    }
    claim = {
        "accessModes": _MODES,
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": _SIZE},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": volume,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": folder.claim, "namespace": kube.namespace},
            "spec": claim,
        },
    ]
