"""Pods that are ready at once instead of engines, for rollouts on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.operator.status_shown import ABSENT

# Process 1 of a container ends by SIGTERM only if it says so: else each pod takes its grace period.
_SERVER = """
import json, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Always(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"choices": [{"message": {"content": "yes"}}]}
        answer = "data: [DONE]" if asked.get("stream") else json.dumps(message)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
ThreadingHTTPServer(("", 8000), Always).serve_forever()
"""


def engine_image(cluster: LiveCluster) -> str:
    """One that is on the node and has Python; skips where there is none."""
    names = "jsonpath={.items[*].status.images[*].names[0]}"
    found = cluster.kubectl("get", "nodes", "-o", names).stdout.split()
    engines = [name for name in found if "atom-engine" in name]
    if not engines:
        pytest.skip("no node has an engine image yet; make images")
    return engines[0]


def quick_container(**more: Any) -> dict[str, Any]:
    """An overlay of the engine's container that answers every probe and question with 200."""
    return {"name": "engine", "command": ["python3", "-c", _SERVER], **more}


def status(cluster: LiveCluster) -> dict[str, Any]:
    return dict((cluster.get("atomd", "chat") or {}).get("status") or {})


def condition(cluster: LiveCluster, kind: str) -> dict[str, Any]:
    """One condition of `chat`, if the status is of the latest generation; ABSENT if that has none
    of its type."""
    found = cluster.get("atomd", "chat") or {}
    generation = (found.get("metadata") or {}).get("generation")
    conditions = (found.get("status") or {}).get("conditions", ())
    latest = {item["type"]: item for item in conditions if item["observedGeneration"] == generation}
    return dict(latest.get(kind, ABSENT)) if latest else {}


def wait_ready(cluster: LiveCluster, seconds: float = 180.0) -> dict[str, Any]:
    """The status once the latest generation is Ready."""
    cluster.wait(
        "Ready", lambda: condition(cluster, "Ready").get("status") == "True", seconds=seconds
    )
    return status(cluster)


def suspend(cluster: LiveCluster, suspended: bool) -> None:
    """Set spec.suspend of `chat`, and wait until its pods have gone, or are back and ready."""
    patch = f'{{"spec": {{"suspend": {str(suspended).lower()}}}}}'
    cluster.kubectl("patch", "atomd", "chat", "--type=merge", f"--patch={patch}")
    kind = "Suspended" if suspended else "Ready"
    cluster.wait(kind, lambda: condition(cluster, kind).get("status") == "True", seconds=120)
