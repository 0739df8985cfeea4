"""The hub of the tests as a pod: a model of the image's own, behind a Service, for a token.

The download of its weights stops in the middle until `release`, so that a test can look at it.
"""

from __future__ import annotations

import yaml

from tests.support.cluster.live_cluster import ROOT
from tools.kube import Kube, wait_until

MODEL = "acme/atom-tiny"
TOKEN = "hub-token-of-the-test"
URL = "http://hub:8080"
_GATE_BYTES = 3 << 20
_SCRIPT = f"""
import signal, sys
from pathlib import Path
sys.path.insert(0, "/hub")
from hub_server import HubServer

files = {{path.name: path.read_bytes() for path in Path("/models/atom-tiny").iterdir()}}
gate = {{"model.safetensors": {_GATE_BYTES}}}
hub = HubServer("{MODEL}", files, "{TOKEN}", gate_after=gate, address=("", 8080))
signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # process 1 ends by it only if it says so
signal.signal(signal.SIGUSR1, lambda *_: (hub.gate_after.clear(), hub.gate.set()))
with hub:
    print("serving", flush=True)
    while True:
        signal.pause()
        print("\\n".join(hub.requests), flush=True)
"""


def start(kube: Kube, image: str) -> None:
    """`image` has Python and /models/atom-tiny."""
    server = (ROOT / "tests" / "support" / "server" / "hub_server.py").read_text(encoding="utf-8")
    container = {
        "name": "hub",
        "image": image,
        "command": ["python3", "-u", "/hub/serve.py"],
        "volumeMounts": [{"name": "script", "mountPath": "/hub"}],
    }
    labels = {"app": "hub"}
    manifests = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hub"},
            "data": {"hub_server.py": server, "serve.py": _SCRIPT},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub"},
            "stringData": {"token": TOKEN},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": labels, "ports": [{"port": 8080}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hub", "labels": labels},
            "spec": {
                "containers": [container],
                "volumes": [{"name": "script", "configMap": {"name": "hub"}}],
            },
        },
    ]
    kube.apply(yaml.safe_dump_all(manifests))
    wait_until("the hub serves", lambda: "serving" in kube.kubectl("logs", "hub"), seconds=60)


def release(kube: Kube) -> None:
    """Let downloads go on."""
    kube.kubectl("exec", "hub", "--", "sh", "-c", "kill -USR1 1")


def requests(kube: Kube) -> list[str]:
    """What it was asked until it was released."""
    return kube.kubectl("logs", "hub").splitlines()[1:]
