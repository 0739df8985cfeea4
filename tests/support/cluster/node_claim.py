"""A claim whose volume is a folder of the only real node, writable for pods of any user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tools.kube import Kube, wait_until

_PARENT = "/tmp"


@contextmanager
def node_claim(kube: Kube, name: str, image: str) -> Iterator[None]:
    """There while the block runs; the folder goes with it."""
    folder = f"atom-claim-{kube.namespace}-{name}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": folder},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"{_PARENT}/{folder}"},
            "claimRef": {"namespace": kube.namespace, "name": name},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": folder,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    _on_the_node(kube, image, f"mkdir -p /node/{folder} && chmod 0777 /node/{folder}")
    kube.apply(yaml.safe_dump_all([volume, claim]))
    try:
        yield
    finally:
        kube.kubectl("delete", "pvc", name, "--ignore-not-found", "--wait=false")
        kube.kubectl("delete", "pv", folder, "--ignore-not-found", "--wait=false")
        _on_the_node(kube, image, f"rm -rf /node/{folder}")


def run_on_claim(kube: Kube, name: str, image: str, command: str) -> str:
    """What a shell in the folder of the claim says."""
    return _on_the_node(kube, image, f"cd /node/atom-claim-{kube.namespace}-{name} && {command}")


def _on_the_node(kube: Kube, image: str, command: str) -> str:
    container = {
        "name": "shell",
        "image": image,
        "command": ["sh", "-c", command],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "node", "mountPath": "/node"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "on-the-node"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "node", "hostPath": {"path": _PARENT}}],
        },
    }
    kube.apply(json.dumps(pod))
    wait_until(
        command,
        lambda: kube.get("pod", "on-the-node")["status"]["phase"] == "Succeeded",
        seconds=60,
    )
    said = kube.kubectl("logs", "on-the-node")
    kube.kubectl("delete", "pod", "on-the-node", "--wait")
    return said
