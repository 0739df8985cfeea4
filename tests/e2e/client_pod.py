"""The client of tests/e2e/client.py in a pod of its own, beside what it asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tools.kube import Kube, wait_until
from tools.on_cluster import ATOM_TINY, Images


def start_client(kube: Kube, images: Images, host: str, question: str = "What is ATOM?") -> None:
    """Let it ask the demo's model at a Service without pause, and wait until it does."""
    kube.kubectl("delete", "pod", "client", "--ignore-not-found", "--wait")
    script = Path(__file__).with_name("client.py").read_text(encoding="utf-8")
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "client"},
        "data": {"client.py": script},
    }
    command = ["python3", "-u", "/client/client.py", host, ATOM_TINY.name, "0", question]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 60,
            "containers": [
                {
                    "name": "client",
                    "image": images.engine,
                    "command": command,
                    "volumeMounts": [{"name": "script", "mountPath": "/client"}],
                }
            ],
            "volumes": [{"name": "script", "configMap": {"name": "client"}}],
        },
    }
    kube.apply(yaml.safe_dump_all([config, pod]))
    wait_until("the client asks", lambda: "asking" in kube.kubectl("logs", "client"), seconds=60)


def stop_client(kube: Kube) -> dict[str, Any]:
    """End the client; return its observations."""
    kube.kubectl("exec", "client", "--", "sh", "-c", "kill -TERM 1")
    wait_until(
        "the client's summary",
        lambda: kube.get("pod", "client")["status"]["phase"] == "Succeeded",
        seconds=90,
    )
    summary: dict[str, Any] = json.loads(kube.kubectl("logs", "client").splitlines()[-1])
    return summary
