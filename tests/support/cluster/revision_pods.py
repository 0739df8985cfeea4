"""Pods that answer each request with their revision's name and the path that they saw, or fail each
of them, and publish whatever metrics a test sets (`metered_pods.publish`).
"""

from __future__ import annotations

from typing import Any

REVISION = "REVISION"  # of the environment
BROKEN = "broken"  # the revision whose answers are errors

_SERVER = """
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
revision, metrics = os.environ["REVISION"], {}
class Revision(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/metrics":
            lines = (f"{name} {value}\\n" for name, value in metrics.items())
            return self.answer(200, "".join(lines))
        failed = revision == "broken" and self.path.startswith("/v1/")
        self.answer(500 if failed else 200, json.dumps([revision, self.path]))
    def do_POST(self):
        metrics.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(200, "{}")
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
ThreadingHTTPServer(("", 8000), Revision).serve_forever()
"""


def revision_container() -> dict[str, Any]:
    """What a container of an image with Python runs."""
    return {"command": ["python3", "-c", _SERVER]}


def of_revision(name: str) -> dict[str, Any]:
    """The part of spec.engine that makes the pods another revision."""
    return {"env": [{"name": REVISION, "value": name}]}
