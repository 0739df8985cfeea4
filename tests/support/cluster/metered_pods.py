"""Pods that publish whatever metrics a test sets: an engine's, or those of a gateway in front."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster.live_cluster import LiveCluster

PORT = 8000
# Answers every probe, that of readiness only while no metric `down` is set; what is posted to /set
# replaces what /metrics says.
_SERVER = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import sys
metrics = json.loads(sys.argv[1])
class Metered(BaseHTTPRequestHandler):
    def do_GET(self):
        text = "".join(f"{name} {value}\\n" for name, value in metrics.items())
        self.send_response(503 if metrics.get("down") and self.path == "/health" else 200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode() if self.path == "/metrics" else b"{}")
    def do_POST(self):
        metrics.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", 8000), Metered).serve_forever()
"""
_SET = """
import sys, urllib.request
urllib.request.urlopen("http://127.0.0.1:8000/set", sys.argv[1].encode(), timeout=10)
"""


def metered_container(**metrics: float) -> dict[str, Any]:
    """What a container of an image with Python runs, at first with these metrics; `_` after the
    first word of a name stands for an engine metric's colon.
    """
    return {"command": ["python3", "-c", _SERVER, json.dumps(named(metrics))]}


def named(metrics: dict[str, float]) -> dict[str, float]:
    return {name.replace("atom_", "atom:", 1): value for name, value in metrics.items()}


def publish(cluster: LiveCluster, pod: str, **metrics: float) -> None:
    """Let a pod say these from now on."""
    text = json.dumps(named(metrics))
    cluster.kubectl("exec", pod, "--", "python3", "-c", _SET, text)


def gateway(image: str, **metrics: float) -> dict[str, Any]:
    """A pod `gateway` that is no engine."""
    container = {
        "name": "gateway",
        "image": image,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        **metered_container(**metrics),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gateway"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
