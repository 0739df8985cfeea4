"""A client in a pod of its own that asks a Service without pause, and what it was answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.cluster.live_cluster import ROOT, LiveCluster

# Pods that answer at once would use up all that the client may ask.
_PAUSE_SECONDS = "0.05"
_SCRIPT = ROOT / "tests" / "e2e" / "client.py"


@dataclass
class Asked:
    """Filled when the client has ended."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def asking(cluster: LiveCluster, image: str, service: str) -> Iterator[Asked]:
    """Requests go on while the block runs; `image` has Python."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "client"},
        "data": {"client.py": _SCRIPT.read_text(encoding="utf-8")},
    }
    container = {
        "name": "client",
        "image": image,
        "command": ["python3", "-u", "/client/client.py", service, service, _PAUSE_SECONDS],
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "volumeMounts": [{"name": "script", "mountPath": "/client"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "script", "configMap": {"name": "client"}}],
        },
    }
    for manifest in (config, pod):
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
    cluster.wait("asking client", lambda: "asking" in _log(cluster))
    asked = Asked()
    yield asked
    cluster.kubectl("exec", "client", "--", "sh", "-c", "kill -TERM 1")
    cluster.wait("end of the client", lambda: _phase(cluster) == "Succeeded", seconds=90)
    summary = json.loads(_log(cluster).splitlines()[-1])
    asked.answered, asked.failures = summary["answered"], summary["failures"]
    cluster.kubectl("delete", "pod/client", "configmap/client")


def _log(cluster: LiveCluster) -> str:
    return cluster.kubectl("logs", "client", check=False).stdout


def _phase(cluster: LiveCluster) -> str:
    return str((cluster.get("pod", "client") or {}).get("status", {}).get("phase"))
